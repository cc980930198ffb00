"""Finds the rows of the frames that a policy sees at once, in a store that keeps every frame once."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import EntryLayout
from rollcast.services.rollouts.rollouts import Rollout

# The row begins an episode: its stack has no older frame. The first transition of a trajectory has no such flag: the
# frames before it lie before its row, as the rollout brought them.
BEGINS: Final = 16

_BEGINS: Final = np.array(BEGINS, np.uint8)


def flag_beginnings(rollout: Rollout) -> NDArray[np.uint8]:
    """Returns uint8 `[T, B]`: BEGINS for transitions that begin an episode inside a trajectory, else 0.

    They are those for which `algorithms.trajectories.sequence_starts` has the rule: the row before is no transition, or
    an episode ended in it.
    """
    ended, valid = rollout.terminated | rollout.truncated, rollout.valid
    begins = np.zeros(rollout.reward.shape, np.bool_)
    begins[1:] = ended[:-1]
    if valid is not None:
        begins[1:] |= ~valid[:-1]
        begins &= valid
        begins[valid.argmax(axis=0), np.arange(rollout.n_envs)] = False  # the first transitions
    return begins * _BEGINS


def rows_of_stacks(rows: NDArray[np.int64], flags: NDArray[np.uint8], frame_stack: int) -> NDArray[np.int64]:
    """Returns the rows of the K frames that end with a row.

    Args:
        rows: int64 `[N]`, rows of a ring, whose row after the last one is row 0; each may be that row after the last.
        flags: uint8 `[n_rows]`, the flags of the ring.
        frame_stack: K.

    Returns:
        int64 `[N, K]`, each in [0, n_rows), the oldest frame first. The row that begins an episode is repeated.
    """
    found = np.empty((len(rows), frame_stack), np.int64)
    found[:, -1] = rows
    for newer in range(frame_stack - 1, 0, -1):
        row = found[:, newer]
        np.subtract(row, (flags.take(row, mode="wrap") & _BEGINS) == 0, out=found[:, newer - 1])
    return np.remainder(found, len(flags), out=found)


def previous_frames(rollout: Rollout, layout: EntryLayout) -> list[NDArray[Any]]:
    """Lists the frames before a rollout, `[B, K - 1, ...]`, in the order of `StepColumns.observations`.

    Args:
        rollout: A rollout that `EntryLayout.check` has accepted.
        layout: Layout of the entries, with a frame stack.
    """
    frames: list[NDArray[Any]] = []
    for key, schemas in layout.substeps.items():
        previous = rollout.substeps[key].previous_observation
        assert previous is not None  # EntryLayout.check
        frames += [previous[path] for path in schemas.observation]
    return frames
