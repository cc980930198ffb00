"""Samples of the buffer, and their arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from rollcast.learner.replay.columns.layout import STEPS, EntryLayout
from rollcast.learner.replay.columns.memory import ColumnArray, ColumnMemory, Gather
from rollcast.services.columns.columns import Columns
from rollcast.services.columns.table import FINAL_AXES, LAST_AXES, PREVIOUS_AXES, STEP_AXES, Column
from rollcast.services.replay.replay import Sample, SampledColumns
from rollcast.services.spaces.leaf_schema import LeafSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleColumns(SampledColumns[ColumnArray]):
    """The columns of one substep: numpy arrays, or tensors if the buffer keeps its columns on the learner's device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySample(Sample[ColumnArray]):
    """A batch of B entries, with the fields of `rollcast.services.ReplayBatch`.

    The arrays belong to a `SampleRing` of n rooms: the arrays stay valid until n - 1 more samples are drawn into the
    ring. Copy them to keep them longer.
    """

    substeps: Mapping[str, SampleColumns]

    @property
    def has_tensors(self) -> bool:
        """True if the columns are tensors on the learner's device."""
        return any(isinstance(columns.action, Tensor) for columns in self.substeps.values())


class Room:
    """The preallocated arrays of one sample, and the sample itself.

    Attributes:
        sample: The sample, filled or not.
        step_targets: `[T * B, ...]`: observations, actions, log-probabilities of all substeps.
        next_targets: `[B, ...]`: next observations of all substeps.
        previous_targets: `[B, K - 1, ...]`: the frames before trajectories; empty if the buffer keeps none.
        state_targets: float32 `[B, S]`: the recurrent states of all substeps; empty if the buffer keeps none.
        gather: Fills `step_targets` and `next_targets`; `StepColumns.make_room` sets it.
        gather_previous: Fills `previous_targets`; a store that keeps the frames before trajectories sets it.
        gather_states: Fills `state_targets`; a store with recurrent states sets it.
        gather_stacks: With a frame stack, fills the stacks frame by frame, while `gather` fills the other targets; else
            None.
        flags: uint8 `[T * B]`.
        terminated: uint8 `[T * B]`, the memory of the sample's `terminated`.
        truncated: bool `[T * B]`, the memory of the sample's `truncated`.
        reward: float32 `[T * B]`, the memory of the sample's `reward`.
    """

    __slots__ = (
        *("flags", "gather", "gather_previous", "gather_stacks", "gather_states", "next_targets", "previous_targets"),
        *("reward", "sample", "state_targets", "step_targets", "terminated", "truncated"),
    )

    gather: Gather
    gather_previous: Gather
    gather_stacks: Gather | None
    gather_states: Gather

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
        """Allocates the arrays.

        Args:
            layout: Layout of the entries; with a frame stack, the sample has the frames before its trajectories.
            memory: The memory of the columns.
            n_steps: T.
            batch_size: B.
            discount: gamma.
            burn_in: `ReplaySample.burn_in`.
        """
        shape = (n_steps, batch_size)
        leading = {
            STEP_AXES: shape,
            LAST_AXES: (batch_size,),
            FINAL_AXES: (0,),
            PREVIOUS_AXES: (batch_size, layout.frame_stack - 1),
        }

        def zeros(column: Column, schemas: Columns[LeafSchema]) -> Mapping[str, ColumnArray]:
            return {
                path: memory.zeros((*leading[column.axes], *schema.shape), schema.dtype)
                for path, schema in column.arrays(schemas).items()
            }

        substeps = {key: SampleColumns.of(partial(zeros, schemas=schemas)) for key, schemas in layout.substeps.items()}
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
        self.step_targets = [array.reshape(-1, *array.shape[2:]) for array in layout.arrays(self.sample, *STEPS)]
        self.next_targets = layout.arrays(self.sample, "last_observation")
        self.previous_targets = layout.arrays(self.sample, "previous_observation")
        self.state_targets = layout.arrays(self.sample, "initial_state")
        self.reward = self.sample.reward.reshape(-1)
        self.gather_stacks = None
        self.flags = np.zeros(n_steps * batch_size, np.uint8)
        self.terminated = self.sample.terminated.view(np.uint8).reshape(-1)
        self.truncated = self.sample.truncated.reshape(-1)


class SampleRing:
    """Rooms that are filled in turn. For one thread; concurrent threads need one ring each."""

    def __init__(self, make_room: Callable[[int], Room], batch_size: int, n_rooms: int) -> None:
        """Allocates the rooms.

        Args:
            make_room: Makes a room for a number of entries.
            batch_size: B.
            n_rooms: Number of rooms, at least 1.
        """
        self.batch_size = batch_size
        self._rooms = [make_room(batch_size) for _ in range(n_rooms)]
        self._next = 0

    def next_room(self) -> Room:
        """Returns the least recently filled room."""
        room = self._rooms[self._next]
        self._next = (self._next + 1) % len(self._rooms)
        return room
