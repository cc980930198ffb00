"""What is drawn from the buffer, and the arrays it is gathered into."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rollcast.learner.replay.columns.layout import EntryLayout
from rollcast.learner.replay.columns.memory import ColumnArray, ColumnMemory, Gather
from rollcast.services.spaces.leaf_schema import LeafSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleColumns:
    """What one substep saw and did: numpy's arrays, or tensors where the buffer's columns are on the learner's device.

    Attributes:
        observation: `[T, B, ...]` for every leaf of the observation space, in the space's own dtype.
        action: `[T, B, ...]`.
        log_prob: float32 `[T, B]`, of the action under the policy that acted; None where it is not kept.
        next_observation: `[B, ...]` for every leaf. Transitions: the observation `n_steps` later, the true final one
            where the episode ended. Rollouts: the observation after the last step.
        final_observation: `[N, ...]` for every leaf, the true last observations at `ReplaySample.final_index`.
    """

    observation: Mapping[str, ColumnArray]
    action: ColumnArray
    log_prob: ColumnArray | None
    next_observation: Mapping[str, ColumnArray]
    final_observation: Mapping[str, ColumnArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySample:
    """B entries. T is 1 for transitions, else the rollout's length or that of burn-in and sequence.

    The arrays belong to a ring: they stay valid until as many further samples were drawn into it as it has rooms, less
    one. Whoever keeps one longer copies it.

    Attributes:
        keys: int64 `[B]`, by which priorities are updated; an entry's key is never given again.
        weights: float32 `[B]`, importance weights in (0, 1]; 1 unless sampling is prioritised.
        n_steps: int64 `[B]`, steps folded into the entry, m: `n_step`, less where episode or trajectory ended before.
        discount: float32 `[B]`, gamma^m: the factor of the next observation's value. Where `terminated` there is none.
        substeps: Columns by substep key; a flat environment has one, `FLAT_SUBSTEP`.
        reward: float32 `[T, B]`; transitions: the sum of gamma^k r_k over the m steps.
        terminated: bool `[T, B]`, nothing follows from this step (the last of the m).
        truncated: bool `[T, B]`, the episode was cut here; the value goes on from the final observation.
        valid: bool `[T, B]`, false on rows that are no transition; those before all transitions of their trajectory may
            hold anything.
        final_index: int64 `[N, 2]`, rows (t, b) where the final observations belong; for transitions none.
        policy_version: int64 `[B]`, the version that acted; -1 where it is not kept, which it is for rollouts only.
        burn_in: How many of the first rows only warm a recurrent state up.
    """

    keys: NDArray[np.int64]
    weights: NDArray[np.float32]
    n_steps: NDArray[np.int64]
    discount: NDArray[np.float32]
    substeps: Mapping[str, SampleColumns]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    final_index: NDArray[np.int64]
    policy_version: NDArray[np.int64]
    burn_in: int

    @property
    def has_tensors(self) -> bool:
        """Whether its columns are torch's, on the learner's device."""
        return any(isinstance(columns.action, Tensor) for columns in self.substeps.values())


class Room:
    """Room for one sample. Its arrays are allocated once, and so is the sample that shows them.

    Attributes:
        sample: The sample, filled or not.
        step_targets: `[T * B, ...]`: observations, actions, log-probabilities of all substeps.
        next_targets: `[B, ...]`: next observations of all substeps.
        gather: Fills both of them; set by the columns that the room is for.
        flags: uint8 `[T * B]`.
        terminated: uint8 `[T * B]`, the memory of the sample's `terminated`.
        truncated: bool `[T * B]`, the memory of the sample's own, too.
        reward: float32 `[T * B]`, likewise.
    """

    __slots__ = ("flags", "gather", "next_targets", "reward", "sample", "step_targets", "terminated", "truncated")

    gather: Gather

    def __init__(
        self,
        layout: EntryLayout,
        memory: ColumnMemory,
        *,
        n_steps: int,
        batch_size: int,
        discount: float,
        burn_in: int,
    ) -> None:
        """Allocates.

        Args:
            layout: Of the entries.
            memory: Where the columns are.
            n_steps: T.
            batch_size: B.
            discount: gamma.
            burn_in: Of the sample.
        """

        def zeros(schema: LeafSchema, *leading: int) -> ColumnArray:
            return memory.zeros((*leading, *schema.shape), schema.dtype)

        shape = (n_steps, batch_size)
        substeps = {
            key: SampleColumns(
                observation={path: zeros(schema, *shape) for path, schema in substep.observation.items()},
                action=zeros(substep.action, *shape),
                log_prob=memory.zeros(shape, np.dtype(np.float32)) if layout.log_prob else None,
                next_observation={path: zeros(schema, batch_size) for path, schema in substep.observation.items()},
                final_observation={path: zeros(schema, 0) for path, schema in substep.observation.items()},
            )
            for key, substep in layout.substeps.items()
        }
        self.sample = ReplaySample(
            keys=np.zeros(batch_size, np.int64),
            weights=np.ones(batch_size, np.float32),
            n_steps=np.ones(batch_size, np.int64),
            discount=np.full(batch_size, discount, np.float32),
            substeps=substeps,
            reward=np.zeros(shape, np.float32),
            terminated=np.zeros(shape, np.bool_),
            truncated=np.zeros(shape, np.bool_),
            valid=np.ones(shape, np.bool_),
            final_index=np.zeros((0, 2), np.int64),
            policy_version=np.full(batch_size, -1, np.int64),
            burn_in=burn_in,
        )
        flat = [array for columns in substeps.values() for array in columns.observation.values()]
        flat += [columns.action for columns in substeps.values()]
        flat += [columns.log_prob for columns in substeps.values() if columns.log_prob is not None]
        self.step_targets = [array.reshape(-1, *array.shape[2:]) for array in flat]
        self.next_targets = [array for columns in substeps.values() for array in columns.next_observation.values()]
        self.reward = self.sample.reward.reshape(-1)
        self.flags = np.zeros(n_steps * batch_size, np.uint8)
        self.terminated = self.sample.terminated.view(np.uint8).reshape(-1)
        self.truncated = self.sample.truncated.reshape(-1)


class SampleRing:
    """Rooms that are filled one after the other. For one thread; threads that sample at once have one each."""

    def __init__(self, make_room: Callable[[int], Room], batch_size: int, n_rooms: int) -> None:
        """Allocates.

        Args:
            make_room: Makes a room for so many entries.
            batch_size: B.
            n_rooms: How many, at least 1.
        """
        self.batch_size = batch_size
        self._rooms = [make_room(batch_size) for _ in range(n_rooms)]
        self._next = 0

    def next_room(self) -> Room:
        """The room that was filled longest ago."""
        room = self._rooms[self._next]
        self._next = (self._next + 1) % len(self._rooms)
        return room
