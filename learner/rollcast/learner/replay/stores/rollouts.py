"""A store of whole rollouts: an entry is T steps of one environment."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.frame_stacks import BEGINS, rows_before
from rollcast.learner.replay.columns.layout import STEPS, EntryLayout, Slots, StoredBytes
from rollcast.learner.replay.columns.memory import (
    Blocks,
    ColumnArray,
    ColumnMemory,
    MainMemory,
    PendingArrays,
    PendingRows,
    Write,
    numbered,
    write_rows,
)
from rollcast.learner.replay.columns.samples import ReplaySample, Room
from rollcast.learner.replay.columns.steps import (
    STEP,
    StepColumns,
    pack_flags,
)
from rollcast.learner.replay.sampling.base import Sampler
from rollcast.learner.replay.saving.part_state import PartState
from rollcast.learner.replay.stores.base import NO_SLOTS
from rollcast.learner.replay.stores.row_plan import plan_rows
from rollcast.learner.replay.stores.slots import SlotStore
from rollcast.services.rollouts.rollouts import Rollout


class RolloutStore(SlotStore):
    """A store in which row `slot * T + t` holds step t of an entry.

    Row `capacity * T + slot` holds the observation after the last step. Final observations are few. Each is stored
    separately in the same memory, and is not preallocated. Sequences of L steps, with `burn_in` steps before
    them, begin anywhere in an entry where they fit. With recurrent states, row `slot` of their columns is the state at
    t = 0, so sequences are whole entries. With a frame stack, rows `capacity * (T + 1) + slot * (K - 1) + i` hold the
    frames before an entry. Samples have the frames before their sequences. See `SlotStore` for keys and threads.
    """

    def __init__(
        self,
        layout: EntryLayout,
        capacity: int,
        remover: Sampler,
        *,
        sequence_length: int | None = None,
        burn_in: int = 0,
        discount: float = 1.0,
        memory: ColumnMemory | None = None,
    ) -> None:
        """Allocates `capacity` times `rollout_bytes(layout)`.

        Args:
            layout: Layout of the entries.
            capacity: The largest number of entries.
            remover: Draws the entries to remove.
            sequence_length: L; None: samples are whole rollouts.
            burn_in: Steps before a sequence; L + burn_in is at most T, and exactly T with recurrent states.
            discount: gamma, for `ReplaySample.discount`.
            memory: The memory for the columns; None: main memory.
        """
        super().__init__(capacity, remover)
        self._layout = layout
        self.row_bytes = rollout_bytes(layout).total
        self._burn_in = burn_in
        self._n_sampled_steps = layout.n_rollout_steps if sequence_length is None else burn_in + sequence_length
        self._discount = discount
        self._n_step_rows = capacity * layout.n_rollout_steps
        self._first_last = np.array(self._n_step_rows)  # numpy adds a 0-dimensional array twice as fast as an int
        self._columns = StepColumns(
            layout, memory or MainMemory(), self._n_step_rows, n_more_observations=capacity * layout.frame_stack
        )
        self._n_previous = layout.frame_stack - 1
        self._states = [
            self._columns.memory.zeros((capacity, *schema.shape), schema.dtype)
            for schema in layout.arrays(layout, "initial_state")
        ]
        self._policy_version = np.zeros(capacity, np.int64)
        # By slot: the steps t at which episodes ended, ascending, and their final observations in the columns' order.
        # Like the columns, they stay when the entry is removed, until another takes its slot.
        self._finals: dict[int, tuple[NDArray[np.int64], list[ColumnArray]]] = {}

    def n_entries(self, rollout: Rollout) -> int:
        """See `EntryStore.n_entries`: one for each environment."""
        return rollout.n_envs

    def make_room(self, batch_size: int) -> Room:
        """See `EntryStore.make_room`. T is the length of a rollout, or of burn-in and sequence together."""
        room = self._columns.make_room(
            n_steps=self._n_sampled_steps,
            batch_size=batch_size,
            discount=self._discount,
            burn_in=self._burn_in,
            stacks=False,
        )
        if self._n_previous:
            targets = [target.reshape(-1, *target.shape[2:]) for target in room.previous_targets]
            frames = list(zip(self._columns.observations, targets, strict=True))
            room.gather_previous = self._columns.memory.gather(frames, [])
        if self._states:
            states = list(zip(self._states, room.state_targets, strict=True))
            room.gather_states = self._columns.memory.gather(states, [])
        return room

    def gather(self, slots: Slots, room: Room, rng: np.random.Generator) -> ReplaySample:
        """See `EntryStore.gather`."""
        sample, n_rollout_steps, n_steps = room.sample, self._layout.n_rollout_steps, self._n_sampled_steps
        n_starts = n_rollout_steps - n_steps + 1
        starts = rng.integers(n_starts, size=len(slots)) if n_starts > 1 else np.zeros(len(slots), np.int64)
        first = slots * n_rollout_steps + starts
        rows = (first + np.arange(n_steps)[:, None]).reshape(-1)
        at_end = starts + n_steps == n_rollout_steps
        following = np.where(at_end, np.add(slots, self._first_last), first + n_steps)
        self._columns.gather(following, rows, room)
        if self._states:
            room.gather_states(slots, NO_SLOTS)
        if self._n_previous:
            room.gather_previous(self._rows_before(slots, starts), NO_SLOTS)
        np.not_equal(room.flags & STEP, 0, out=sample.valid.reshape(-1))
        sample.policy_version[:] = self._policy_version.take(slots)
        sample.keys[:] = self._keys(slots)
        return self._with_finals(sample, slots, starts)

    def load_state(self, state: PartState) -> None:
        """See `EntryStore.load_state`."""
        super().load_state(state)
        self._finals.clear()

    def read_rows(self, slots: Slots) -> PendingRows:
        """See `EntryStore.read_rows`.

        Steps are `[N, T, ...]`, last observations `[N, ...]`. Separate arrays hold the final observations.
        """
        rows, columns = self._step_rows(slots), self._columns
        memory = columns.memory
        steps, flags = columns.read(rows), columns.flags.take(rows)
        last = memory.read(columns.observations, np.add(slots, self._first_last))
        states = memory.read(self._states, slots) if self._states else None
        frames = memory.read(columns.observations, self._previous_rows(slots)) if self._n_previous else None
        finals = [self._finals.get(slot) for slot in slots.tolist()]
        n_finals = [0 if found is None else len(found[0]) for found in finals]
        kept = [found for found in finals if found is not None]
        rest = {"policy_version": self._policy_version.take(slots), "n_finals": np.array(n_finals, np.int64)}
        final_observations: PendingArrays | None = None
        if kept:
            rest["final_t"] = np.concatenate([t for t, _ in kept])
            final_observations = memory.fetch(
                [memory.join([pieces[i] for _, pieces in kept]) for i in range(len(columns.observations))]
            )

        def wait() -> dict[str, NDArray[Any]]:
            arrays = _by_slot(slots, steps() | {"flags": flags}) | numbered("last", last())
            if states is not None:
                arrays |= numbered("state", states())
            if frames is not None:
                arrays |= _by_slot(slots, numbered("previous", frames()))
            if final_observations is not None:
                arrays |= numbered("final", final_observations())
            return arrays | rest

        return wait

    def write_rows(self, slots: Slots, arrays: Mapping[str, NDArray[Any]], wanted: NDArray[np.bool_]) -> None:
        """See `EntryStore.write_rows`."""
        slots, columns = slots[wanted], self._columns
        rows = self._step_rows(slots)
        names = ("reward", "flags", *(f"step{i}" for i in range(len(columns.steps))))
        steps = {name: arrays[name][wanted].reshape(-1, *arrays[name].shape[2:]) for name in names}
        columns.write(rows, steps)
        columns.flags[rows] = steps["flags"]
        last = [arrays[f"last{i}"][wanted] for i in range(len(columns.observations))]
        columns.memory.write([Write(columns.observations, np.add(slots, self._first_last), last)])
        if self._states:
            states = [arrays[f"state{i}"][wanted] for i in range(len(self._states))]
            columns.memory.write([Write(self._states, slots, states)])
        if self._n_previous:
            frames = [arrays[f"previous{i}"][wanted] for i in range(len(columns.observations))]
            frames = [array.reshape(-1, *array.shape[2:]) for array in frames]
            columns.memory.write([Write(columns.observations, self._previous_rows(slots), frames)])
        self._policy_version[slots] = arrays["policy_version"][wanted]
        self._write_finals(slots, arrays, wanted)

    def _write_finals(self, slots: Slots, arrays: Mapping[str, NDArray[Any]], wanted: NDArray[np.bool_]) -> None:
        sizes, final_t, finals = self._finals_of(PartState(arrays), len(wanted))
        is_wanted = np.repeat(wanted, sizes)
        if not is_wanted.any():
            return
        has_some = wanted & (sizes > 0)
        self._put_finals(
            slots[has_some[wanted]], sizes[has_some], final_t[is_wanted], [final[is_wanted] for final in finals]
        )

    def _finals_of(self, rows: PartState, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64], list[NDArray[Any]]]:
        """Checks the final observations of n entries from `read_rows`; `_put_finals` does not check them.

        Returns:
            The number of final observations of each entry, their steps t, and the observations.

        Raises:
            ValueError: They cannot come from `read_rows`.
        """
        n_steps = self._layout.n_rollout_steps
        sizes = rows.array("n_finals", (n,), np.int64)
        if ((sizes < 0) | (sizes > n_steps)).any():
            raise ValueError(f"n_finals is from {sizes.min()} to {sizes.max()}; expected from 0 to {n_steps}")
        n_finals = int(sizes.sum())
        if not n_finals:
            return sizes, np.empty(0, np.int64), []
        t = rows.array("final_t", (n_finals,), np.int64)
        if not 0 <= t.min() <= t.max() < n_steps or (np.diff(t + n_steps * np.repeat(np.arange(n), sizes)) <= 0).any():
            raise ValueError(f"final_t is from {t.min()} to {t.max()}; expected below {n_steps}, ascending in an entry")
        leaves = self._layout.arrays(self._layout, "final_observation")
        finals = [rows.array(f"final{i}", (n_finals, *leaf.shape), leaf.dtype) for i, leaf in enumerate(leaves)]
        return sizes, t, finals

    def _step_rows(self, slots: Slots) -> NDArray[np.int64]:
        """Returns the rows of all steps of entries, int64 `[N * T]`."""
        n_steps = self._layout.n_rollout_steps
        rows: NDArray[np.int64] = (slots[:, None] * n_steps + np.arange(n_steps)).reshape(-1)
        return rows

    def _previous_rows(self, slots: Slots) -> NDArray[np.int64]:
        """Returns the rows of the frames before entries, int64 `[N * (K - 1)]`."""
        first = self._n_step_rows + self.capacity
        rows: NDArray[np.int64] = first + slots[:, None] * self._n_previous + np.arange(self._n_previous)
        return rows.reshape(-1)

    def _rows_before(self, slots: Slots, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the rows of the frames before the first transitions of sequences, int64 `[N * (K - 1)]`."""
        previous = self._previous_rows(slots)
        if not starts.any():
            return previous
        n_steps = self._layout.n_rollout_steps
        flags = self._columns.flags.take(self._step_rows(slots)).reshape(-1, n_steps).T
        valid = (flags & STEP) != 0
        sampled = valid & (np.arange(n_steps)[:, None] >= starts)
        # A sequence without a transition may have any frames.
        row = np.where(sampled.any(axis=0), sampled.argmax(axis=0), n_steps - 1)
        first = valid.argmax(axis=0)
        rows = rows_before(np.maximum(row, first), first, (flags & BEGINS) != 0, self._n_previous)
        from_previous = np.take_along_axis(
            previous.reshape(rows.shape), np.clip(self._n_previous + rows - first[:, None], 0, self._n_previous - 1), 1
        )
        found: NDArray[np.int64] = np.where(rows < first[:, None], from_previous, slots[:, None] * n_steps + rows)
        return found.reshape(-1)

    def _prepare(self, rollout: Rollout) -> None:
        plan_rows(rollout)  # checks that no final observation is missing

    def _overwrite(self, slots: Slots, rollout: Rollout) -> None:
        self.guard.before_overwriting(slots, self.read_rows)
        for slot in slots.tolist():
            self._finals.pop(slot, None)
        columns, layout = self._columns, self._layout
        rows = Blocks(self._n_step_rows, layout.n_rollout_steps, slots)
        last = layout.arrays(rollout, "last_observation")
        writes = [
            Write(columns.steps, rows, layout.arrays(rollout, *STEPS)),
            Write(columns.observations, np.add(slots, self._first_last), last),
        ]
        if self._states:
            writes.append(Write(self._states, slots, layout.arrays(rollout, "initial_state")))
        if self._n_previous:
            frames = layout.arrays(rollout, "previous_observation")
            flat = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in frames]
            writes.append(Write(columns.observations, self._previous_rows(slots), flat))
        columns.memory.write(writes)
        write_rows((columns.reward, columns.flags), rows, (rollout.reward, pack_flags(rollout, layout.frame_stack)))
        self._policy_version[slots] = rollout.policy_version
        if len(rollout.final_index):
            self._keep_finals(slots, rollout)

    def _keep_finals(self, slots: Slots, rollout: Rollout) -> None:
        t, b = rollout.final_index.T.astype(np.int64)
        order = np.lexsort((t, b))
        envs, sizes = np.unique(b, return_counts=True)
        finals = [final[order] for final in self._layout.arrays(rollout, "final_observation")]
        self._put_finals(slots[envs], sizes, t[order], finals)

    def _put_finals(
        self, slots: Slots, sizes: NDArray[np.int64], t: NDArray[np.int64], finals: list[NDArray[Any]]
    ) -> None:
        """Cuts `t` and the final observations into chunks of these sizes, and keeps one for each slot."""
        kept = self._columns.memory.keep(finals, sizes.tolist())
        pieces = np.split(t, np.cumsum(sizes)[:-1])
        for slot, its_t, observations in zip(slots.tolist(), pieces, kept, strict=True):
            self._finals[slot] = (its_t, observations)

    def _with_finals(self, sample: ReplaySample, slots: Slots, starts: NDArray[np.int64]) -> ReplaySample:
        """Returns the sample with those final observations that lie inside it."""
        indices: list[NDArray[np.int64]] = []
        values: list[list[ColumnArray]] = [[] for _ in self._columns.observations]
        for b, slot in enumerate(slots.tolist()):
            finals = self._finals.get(slot)
            if finals is None:
                continue
            t = finals[0] - starts[b]
            begin, end = t.searchsorted((0, self._n_sampled_steps)).tolist()
            indices.append(np.stack([t[begin:end], np.full(end - begin, b)], axis=1))
            for found, array in zip(values, finals[1], strict=True):
                found.append(array[begin:end])
        if not indices:
            return sample
        observations = iter([self._columns.memory.join(found) for found in values])
        return dataclasses.replace(
            sample,
            final_index=np.concatenate(indices),
            substeps={
                key: dataclasses.replace(
                    columns, final_observation={path: next(observations) for path in columns.final_observation}
                )
                for key, columns in sample.substeps.items()
            },
        )


def rollout_bytes(layout: EntryLayout) -> StoredBytes:
    """Returns the bytes of an entry of a `RolloutStore`, without final observations.

    An entry has T steps, the last observation, the K - 1 observations before the first step (with a frame stack), the
    recurrent state, and 8 bytes for the policy version.
    """
    steps = layout.step_bytes.times(layout.n_rollout_steps)
    more = layout.frame_stack * layout.observation_bytes + layout.state_bytes
    return StoredBytes(steps.columns + more, steps.bookkeeping + 8)


def _by_slot(slots: Slots, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Returns arrays `[N * T, ...]` as `[N, T, ...]`."""
    return {name: array.reshape(len(slots), -1, *array.shape[1:]) for name, array in arrays.items()}
