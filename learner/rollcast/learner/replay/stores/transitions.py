"""A store of transitions in any order, each with a separate next observation, for removal by priority."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import EntryLayout, Slots, StoredBytes
from rollcast.learner.replay.columns.memory import ColumnMemory, MainMemory, PendingRows, Write, host_array, numbered
from rollcast.learner.replay.columns.samples import ReplaySample, Room
from rollcast.learner.replay.columns.steps import ENTRY, STEP, TERMINATED, TRUNCATED, StepColumns
from rollcast.learner.replay.sampling.base import Sampler
from rollcast.learner.replay.saving.row_guard import select
from rollcast.learner.replay.stores.slots import SlotStore
from rollcast.learner.replay.stores.trajectory_ring import TrajectoryRing
from rollcast.services.rollouts.rollouts import Rollout


class TransitionStore(SlotStore):
    """A store of transitions that are removed in any order, so that the next step of a transition may be gone.

    Each transition keeps its next observation, at twice the bytes of a `TrajectoryRing`. The transition is folded over
    n steps at insertion, while the next steps are available. With a frame stack it keeps both stacks, 2 K frames,
    because the previous steps may be gone, too. See `SlotStore` for keys and threads.
    """

    def __init__(
        self,
        layout: EntryLayout,
        capacity: int,
        remover: Sampler,
        *,
        n_step: int = 1,
        discount: float = 1.0,
        memory: ColumnMemory | None = None,
    ) -> None:
        """Allocates `capacity` times `transition_bytes(layout)`.

        Args:
            layout: Layout of the entries.
            capacity: The largest number of entries, at least T.
            remover: Draws the entries to remove.
            n_step: Number of steps folded into one transition, at least 1.
            discount: gamma, for folding.
            memory: The memory for the columns; None: main memory.
        """
        super().__init__(capacity, remover)
        self._layout = layout
        self.row_bytes = transition_bytes(layout).total
        stacked = layout.stacked
        self._n_step = n_step
        self._discount = discount
        memory = memory or MainMemory()
        self._columns = StepColumns(stacked, memory, capacity)
        schemas = stacked.arrays(stacked, "last_observation")
        self._next = [memory.zeros((capacity, *schema.shape), schema.dtype) for schema in schemas]
        self._n_steps = np.ones(capacity, np.uint16)
        # Takes rollouts apart, in main memory; grows with the largest number of environments.
        self._scratch = self._make_scratch(1)
        self._scratch_envs = 1
        self._rng = np.random.default_rng(0)  # a ring draws nothing from it

    def n_entries(self, rollout: Rollout) -> int:
        """See `EntryStore.n_entries`: one for each transition."""
        return rollout.n_env_steps

    def make_room(self, batch_size: int) -> Room:
        """See `EntryStore.make_room`. T is 1."""
        return self._columns.make_room(
            n_steps=1, batch_size=batch_size, discount=self._discount, next_columns=self._next
        )

    def gather(self, slots: Slots, room: Room, rng: np.random.Generator) -> ReplaySample:
        """See `EntryStore.gather`."""
        sample = room.sample
        self._columns.gather(slots, slots, room)
        if self._n_step > 1:
            sample.n_steps[:] = self._n_steps.take(slots)
            np.power(self._discount, sample.n_steps, out=sample.discount, casting="same_kind")
        sample.keys[:] = self._keys(slots)
        return sample

    def read_rows(self, slots: Slots) -> PendingRows:
        """See `EntryStore.read_rows`."""
        steps, following = self._columns.read(slots), self._columns.memory.read(self._next, slots)
        rest: dict[str, NDArray[Any]] = {"n_steps": self._n_steps.take(slots), "flags": self._columns.flags.take(slots)}
        return lambda: steps() | numbered("next", following()) | rest

    def write_rows(self, slots: Slots, arrays: Mapping[str, NDArray[Any]], wanted: NDArray[np.bool_]) -> None:
        """See `EntryStore.write_rows`."""
        slots, arrays = slots[wanted], select(arrays, wanted)
        self._columns.write(slots, arrays)
        following = [arrays[f"next{i}"] for i in range(len(self._next))]
        self._columns.memory.write([Write(self._next, slots, following)])
        self._n_steps[slots], self._columns.flags[slots] = arrays["n_steps"], arrays["flags"]

    def _make_scratch(self, n_envs: int) -> TrajectoryRing:
        capacity = 2 * n_envs * self._layout.n_rollout_steps  # enough for any number of episode ends
        return TrajectoryRing(self._layout, capacity, n_step=self._n_step, discount=self._discount)

    def _prepare(self, rollout: Rollout) -> None:
        if rollout.n_envs > self._scratch_envs:
            self._scratch, self._scratch_envs = self._make_scratch(rollout.n_envs), rollout.n_envs
        self._scratch.clear()
        self._scratch.insert(rollout)

    def _overwrite(self, slots: Slots, rollout: Rollout) -> None:
        if not len(slots):
            return
        self.guard.before_overwriting(slots, self.read_rows)
        room = self._scratch.make_room(len(slots))
        sample = self._scratch.gather(self._scratch.entries(), room, self._rng)
        self._columns.memory.write(
            [
                Write(self._columns.steps, slots, [host_array(values) for values in room.step_targets]),
                Write(self._next, slots, [host_array(values) for values in room.next_targets]),
            ]
        )
        self._columns.reward[slots] = room.reward
        self._columns.flags[slots] = room.terminated * TERMINATED + room.truncated * TRUNCATED + (STEP | ENTRY)
        self._n_steps[slots] = sample.n_steps


def transition_bytes(layout: EntryLayout) -> StoredBytes:
    """Returns the bytes of an entry of a `TransitionStore`.

    An entry has a step, its next observation, and 2 bytes for the number of steps. Each observation is a stack
    if the layout has one.
    """
    stacked = layout.stacked
    step = stacked.step_bytes
    return StoredBytes(step.columns + stacked.observation_bytes, step.bookkeeping + 2)
