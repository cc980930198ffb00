"""Finds the rows of stacked frames in a store that keeps every frame once."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.services.rollouts.rollouts import Rollout

# The row begins an episode: its stack has no older frame. The first transition of a trajectory has no such flag: the
# frames before it lie before its row, as the rollout brought them.
BEGINS: Final = 16

_BEGINS: Final = np.array(BEGINS, np.uint8)


def flag_beginnings(rollout: Rollout) -> NDArray[np.uint8]:
    """Returns uint8 `[T, B]`: BEGINS for transitions that begin an episode inside a trajectory, else 0.

    The rule is the same as in `algorithms.trajectories.sequence_starts`: the previous row is not a transition, or ends
    an episode.
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
    """Returns the rows of the K frames whose last frame is in a given row.

    Args:
        rows: int64 `[N]`, rows of a ring. The value n_rows means row 0.
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


def frames_before(rollout: Rollout, t: int, key: str) -> dict[str, NDArray[Any]]:
    """Returns the frames before the steps of a rollout from `t` on, like `SubstepColumns.previous_observation`.

    Args:
        rollout: A rollout with the frames before it.
        t: A step, or T for the observation after the last step.
        key: The substep.

    Returns:
        `[B, K - 1, ...]` for every leaf: the frames before the first transition at or after `t`. Without such a
            transition, those before the observation after the last step. An observation that begins an episode is
            repeated.
    """
    n_steps, n_envs = rollout.reward.shape
    valid = np.ones((n_steps, n_envs), np.bool_) if rollout.valid is None else rollout.valid
    begins = np.empty((n_steps + 1, n_envs), np.bool_)
    begins[:-1] = flag_beginnings(rollout)
    begins[-1] = ~valid[-1]
    begins[-1, rollout.final_index[rollout.final_index[:, 0] == n_steps - 1, 1]] = True
    first, b = valid.argmax(axis=0), np.arange(n_envs)
    row = np.where(valid[t:].any(axis=0), t + valid[t:].argmax(axis=0), n_steps) if t < n_steps else n_steps + 0 * b
    columns = rollout.substeps[key]
    assert columns.previous_observation is not None
    frames: dict[str, NDArray[Any]] = {}
    n_previous = next(iter(columns.previous_observation.values())).shape[1]
    rows = rows_before(row, first, begins, n_previous)
    is_earlier, is_last = rows < first[:, None], rows == n_steps
    b = np.broadcast_to(b[:, None], rows.shape)
    for path, leaf in columns.observation.items():
        found = leaf[np.clip(rows, 0, n_steps - 1), b]
        found[is_last] = columns.last_observation[path][b[is_last]]
        earlier = (n_previous + rows - first[:, None])[is_earlier]
        found[is_earlier] = columns.previous_observation[path][b[is_earlier], earlier]
        frames[path] = found
    return frames


def rows_before(
    row: NDArray[np.int64], first: NDArray[np.int64], begins: NDArray[np.bool_], n_previous: int
) -> NDArray[np.int64]:
    """Returns the rows of the frames before a row of each trajectory.

    Args:
        row: int64 `[B]`, the row, at least `first`.
        first: int64 `[B]`, the first transition of each trajectory.
        begins: Bool `[T + 1, B]` or `[T, B]`, True where an episode begins, except in a first transition.
        n_previous: K - 1.

    Returns:
        int64 `[B, K - 1]`, the oldest first; `first - i` for the i-th frame before the first transition.
    """
    rows = np.empty((len(row), n_previous), np.int64)
    for i in range(n_previous - 1, -1, -1):
        row = row - ~(begins[np.maximum(row, 0), np.arange(len(row))] & (row >= first))
        rows[:, i] = row
    return rows
