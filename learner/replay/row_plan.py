"""Where the rows of a rollout go in a ring in which every step is followed by its next observation."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.errors import InvalidRolloutError
from services.rollouts import Observation, Rollout


class RowPlan(NamedTuple):
    """Rows of a rollout, counted from the first.

    Attributes:
        n_rows: How many there are.
        steps: int64 `[T, B]`, the row of every (t, b); None: trajectory by trajectory, T rows and one more each.
        kept: bool `[T, B]`, which of them are rows at all; None: all.
        ends: int64 `[B]`, the row behind each trajectory, for the observation after its last step.
        finals: int64 `[N]`, the rows of the final observations.
    """

    n_rows: int
    steps: NDArray[np.int64] | None
    kept: NDArray[np.bool_] | None
    ends: NDArray[np.int64]
    finals: NDArray[np.int64]


_NO_FINALS = np.zeros(0, np.int64)


def plan_rows(rollout: Rollout) -> RowPlan:
    """Gives every step a row, and every final observation one right behind its step.

    Reset rows stay, because their observation is the final one of the step before; without such a step, at t = 0, they
    are left out.

    Args:
        rollout: Any.

    Returns:
        The rows; a trajectory takes T + 1, and at most 2 T.

    Raises:
        InvalidRolloutError: If an episode ended before the last step and its final observation is nowhere.
    """
    n_steps, n_envs = rollout.reward.shape
    ended = rollout.terminated[:-1] | rollout.truncated[:-1]
    if rollout.valid is None and not len(rollout.final_index) and not ended.any():
        ends = np.arange(n_steps, n_envs * (n_steps + 1), n_steps + 1)
        return RowPlan(n_envs * (n_steps + 1), None, None, ends, _NO_FINALS)
    valid = np.ones((n_steps, n_envs), np.bool_) if rollout.valid is None else rollout.valid
    has_final = np.zeros((n_steps, n_envs), np.bool_)
    t, b = rollout.final_index.T.astype(np.int64)
    has_final[t, b] = True
    _check_final_observations(rollout, ended & valid[:-1] & valid[1:] & ~has_final[:-1])
    has_final[-1] = False  # that one goes where the observation after the last step would
    kept = np.ones((n_steps, n_envs), np.bool_)
    kept[0] = valid[0]
    used = np.cumsum(kept.astype(np.int64) + has_final, axis=0)
    stops = np.cumsum(used[-1] + 1)
    starts = stops - used[-1] - 1
    steps = starts + used - kept - has_final
    finals = np.where(t < n_steps - 1, steps[t, b] + 1, stops[b] - 1)
    return RowPlan(int(stops[-1]), steps, None if kept[0].all() else kept, stops - 1, finals)


def trajectories(rollout: Rollout, start: int, stop: int) -> Rollout:
    """The trajectories `start:stop` of a rollout, without statistics; nothing is copied but final observations.

    Args:
        rollout: Any.
        start: The first environment.
        stop: The one after the last.

    Returns:
        A rollout of `stop - start` environments.
    """
    part = slice(start, stop)
    wanted = (rollout.final_index[:, 1] >= start) & (rollout.final_index[:, 1] < stop)

    def steps(observation: Observation) -> Observation:
        return {path: leaf[:, part] for path, leaf in observation.items()}

    def select(observation: Observation, index: slice | NDArray[np.bool_]) -> Observation:
        return {path: leaf[index] for path, leaf in observation.items()}

    return dataclasses.replace(
        rollout,
        substeps={
            key: dataclasses.replace(
                columns,
                observation=steps(columns.observation),
                action=columns.action[:, part],
                log_prob=columns.log_prob[:, part],
                last_observation=select(columns.last_observation, part),
                final_observation=select(columns.final_observation, wanted)
                if len(wanted)
                else columns.final_observation,
            )
            for key, columns in rollout.substeps.items()
        },
        reward=rollout.reward[:, part],
        terminated=rollout.terminated[:, part],
        truncated=rollout.truncated[:, part],
        valid=None if rollout.valid is None else rollout.valid[:, part],
        final_index=rollout.final_index[wanted] - np.array([0, start], np.int32),
        episodes=(),
        env_seeds=rollout.env_seeds[part],
    )


def pieces(rollout: Rollout, fits: Callable[[Rollout], bool]) -> Iterator[Rollout]:
    """Cuts a rollout until every piece fits.

    Args:
        rollout: Any.
        fits: Says whether a piece is small enough; true of a single trajectory.

    Yields:
        The pieces, in order.
    """
    if fits(rollout):
        yield rollout
        return
    middle = rollout.n_envs // 2
    yield from pieces(trajectories(rollout, 0, middle), fits)
    yield from pieces(trajectories(rollout, middle, rollout.n_envs), fits)


def _check_final_observations(rollout: Rollout, missing: NDArray[np.bool_]) -> None:
    if missing.any():
        t, b = (int(index[0]) for index in np.nonzero(missing))
        raise InvalidRolloutError(
            f"rollout {rollout.sequence} of {rollout.actor_id!r}: the episode of environment {b} ended at step {t}, "
            "and neither final_index nor a reset row after it has its final observation; expected one of them, because "
            "a transition needs its true next observation; record them as the vector environment's autoreset mode says"
        )
