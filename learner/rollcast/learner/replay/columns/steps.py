"""The columns of steps, row by row. The flags of a row are packed into one byte."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.learner.replay.columns.frame_stacks import BEGINS, flag_beginnings, rows_of_stacks
from rollcast.learner.replay.columns.layout import STEPS, EntryLayout
from rollcast.learner.replay.columns.memory import ColumnArray, ColumnMemory, PendingRows, Write, numbered
from rollcast.learner.replay.columns.samples import Room
from rollcast.services.rollouts.rollouts import Rollout

# `terminated` and `truncated` are the lowest and the highest bit: each becomes a boolean in one numpy call.
TERMINATED: Final = 1
# The row is a transition.
STEP: Final = 2
# The transition can be drawn: it was drawn fewer than `max_times_sampled` times.
ENTRY: Final = 4
TRUNCATED: Final = 8

# numpy works with 0-dimensional arrays in half the time it takes with Python ints.
_TERMINATED: Final = np.array(TERMINATED, np.uint8)
_TRUNCATED: Final = np.array(TRUNCATED, np.uint8)
_STEP_AND_ENTRY: Final = np.array(STEP | ENTRY, np.uint8)
_ALL_BUT_BEGINS: Final = np.array(~BEGINS & 0xFF, np.uint8)


class StepColumns:
    """The arrays `[n_rows, ...]` of all parts of a step, allocated once. The buffer's lock guards them.

    Attributes:
        memory: The memory of `steps`.
        steps: Observations, actions, log-probabilities of all substeps, in the order of `Room.step_targets`.
        observations: The observations among `steps`, in the order of `Room.next_targets`.
        reward: float32, in main memory.
        flags: uint8, in main memory.
    """

    __slots__ = ("_layout", "flags", "memory", "observations", "reward", "steps")

    def __init__(self, layout: EntryLayout, memory: ColumnMemory, n_rows: int, *, n_more_observations: int = 0) -> None:
        """Allocates `n_rows` times `layout.step_bytes`.

        Args:
            layout: Layout of the entries.
            memory: The memory for `steps`.
            n_rows: Number of rows.
            n_more_observations: The number of extra rows of observations, after those of the steps.
        """
        self._layout = layout
        self.memory = memory
        n_observations = len(layout.arrays(layout, "observation"))
        self.steps = [
            memory.zeros((n_rows + (n_more_observations if i < n_observations else 0), *schema.shape), schema.dtype)
            for i, schema in enumerate(layout.arrays(layout, *STEPS))
        ]
        self.observations = self.steps[:n_observations]
        self.reward = np.zeros(n_rows, np.float32)
        self.flags = np.zeros(n_rows, np.uint8)

    def read(self, rows: NDArray[np.int64]) -> PendingRows:
        """Begins to copy the rows int64 `[N]` of all columns but the flags into main memory."""
        steps, reward = self.memory.read(self.steps, rows), self.reward.take(rows)
        return lambda: numbered("step", steps()) | {"reward": reward}

    def write(self, rows: NDArray[np.int64], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Writes back rows that `read` copied."""
        self.memory.write([Write(self.steps, rows, [arrays[f"step{i}"] for i in range(len(self.steps))])])
        self.reward[rows] = arrays["reward"]

    def make_room(
        self,
        *,
        n_steps: int,
        batch_size: int,
        discount: float,
        burn_in: int = 0,
        next_columns: Sequence[ColumnArray] | None = None,
        stacks: bool = True,
    ) -> Room:
        """Makes a room for samples of these columns.

        Args:
            n_steps: T.
            batch_size: B.
            discount: gamma.
            burn_in: `ReplaySample.burn_in`.
            next_columns: The columns of next observations, in the same memory; None: `observations`.
            stacks: With a frame stack, True: observations are stacks. False: single frames, and the frames before them.
        """
        room = Room(
            self._layout.stacked if stacks else self._layout,
            self.memory,
            n_steps=n_steps,
            batch_size=batch_size,
            discount=discount,
            burn_in=burn_in,
        )
        following = self.observations if next_columns is None else next_columns
        next_pairs = list(zip(following, room.next_targets, strict=True))
        step_pairs = list(zip(self.steps, room.step_targets, strict=True))
        if self._layout.frame_stack > 1 and stacks:
            substeps = self._layout.substeps.values()
            are_stacked = [path != ACTION_MASK for substep in substeps for path in substep.observation]
            room.gather_stacks = self.memory.gather(
                _frame_by_frame(compress(next_pairs, are_stacked)), _frame_by_frame(compress(step_pairs, are_stacked))
            )
            are_single = [not is_stacked for is_stacked in are_stacked]
            n_others = len(step_pairs) - len(are_single)
            next_pairs = list(compress(next_pairs, are_single))
            step_pairs = list(compress(step_pairs, [*are_single, *(True,) * n_others]))
        room.gather = self.memory.gather(next_pairs, step_pairs)
        return room

    def gather(self, following: NDArray[np.int64], rows: NDArray[np.int64], room: Room) -> None:
        """Copies next observations, steps and flags into a room.

        Args:
            following: int64 `[B]`, rows of the next observations; the row after the last one is row 0.
            rows: int64 `[T * B]`, rows of the steps, each in [0, n_rows).
            room: The room to fill.
        """
        room.gather(following, rows)
        if room.gather_stacks is not None:
            stacks = rows_of_stacks(np.concatenate([following, rows]), self.flags, self._layout.frame_stack)
            n_next = stacks.shape[1] * len(following)
            room.gather_stacks(stacks.reshape(-1)[:n_next], stacks.reshape(-1)[n_next:])
        self.reward.take(rows, 0, room.reward, "clip")
        self.gather_flags(rows, room)

    def gather_flags(self, rows: NDArray[np.int64], room: Room) -> None:
        """Fills `flags`, `terminated` and `truncated` of a room.

        Args:
            rows: int64 `[T * B]`, rows of the steps, each in [0, n_rows).
            room: The room to fill.
        """
        self.flags.take(rows, 0, room.flags, "clip")
        if self._layout.frame_stack > 1:
            np.bitwise_and(room.flags, _ALL_BUT_BEGINS, room.flags)
        np.bitwise_and(room.flags, _TERMINATED, room.terminated)
        np.greater_equal(room.flags, _TRUNCATED, room.truncated)


def pack_flags(rollout: Rollout, frame_stack: int = 1) -> NDArray[np.uint8]:
    """Packs the flags of a rollout into uint8 `[T, B]`; with a frame stack, also the beginnings of episodes."""
    flags: NDArray[np.uint8] = np.multiply(rollout.truncated, _TRUNCATED)
    np.add(flags, rollout.terminated, flags)
    np.add(flags, _STEP_AND_ENTRY, flags)
    if rollout.valid is not None:
        flags *= rollout.valid
    if frame_stack > 1:
        flags += flag_beginnings(rollout)
    return flags


def _frame_by_frame(pairs: Iterable[tuple[ColumnArray, ColumnArray]]) -> list[tuple[ColumnArray, ColumnArray]]:
    """Returns columns `[n_rows, ...]` with their targets `[N, K, ...]` as `[N * K, ...]`, in the same memory."""
    return [(column, target.reshape(-1, *column.shape[1:])) for column, target in pairs]
