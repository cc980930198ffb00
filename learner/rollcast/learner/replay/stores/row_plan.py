"""Where the rows of a rollout go in a ring in which every step is followed by its next observation."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.services.errors import InvalidRolloutError
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import Observation


class RowPlan(NamedTuple):
    """Rows of a rollout, counted from the first: trajectory by trajectory, each with one more behind its last step.

    Attributes:
        source: int64 `[n_rows]`, the step t * B + b that each of them shows; -1: none, but an observation.
        ends: int64 `[B]`, the row behind each trajectory, for the observation after its last step.
        finals: int64 `[N]`, the rows of the final observations.
    """

    source: NDArray[np.int64]
    ends: NDArray[np.int64]
    finals: NDArray[np.int64]


_NO_FINALS = np.zeros(0, np.int64)


def plan_rows(rollout: Rollout) -> RowPlan:
    """Gives every step a row, and every final observation one right behind its step.

    Reset rows stay, because their observation is the final one of the step before; rows without such a step, before all
    transitions of their trajectory, are left out.

    Args:
        rollout: Any.

    Returns:
        The rows; a trajectory takes at most 2 T, and T + 1 where no episode ends in it and all of its rows are kept.

    Raises:
        InvalidRolloutError: If an episode ended before the last step and its final observation is nowhere.
    """
    n_steps, n_envs = rollout.reward.shape
    regular = _regular_plan(n_steps, n_envs)
    valid, final_index = rollout.valid, rollout.final_index
    missing = np.logical_or(rollout.terminated[:-1], rollout.truncated[:-1])
    if valid is not None:
        missing &= valid[:-1] & valid[1:]
    elif not len(final_index) and not missing.any():
        return regular
    t, b = final_index.T.astype(np.int64)
    inside = t < n_steps - 1  # the last one goes where the observation after the last step would
    missing[t[inside], b[inside]] = False
    _check_final_observations(rollout, missing)
    # rows of the regular plan that get another one behind them
    before = (b * (n_steps + 1) + t)[inside]
    each_before = before.copy()
    each_before.sort()
    if (each_before[1:] == each_before[:-1]).any():
        each_before = np.unique(each_before)
    shown, ends, n_until = regular.source, regular.ends, each_before + 1
    if valid is not None:
        # from its first transition on
        kept = np.ones((n_envs, n_steps + 1), np.bool_)
        np.logical_or.accumulate(valid, axis=0, out=kept[:, :-1].T)
        n_kept = kept.cumsum()
        shown, ends, n_until = shown[kept.reshape(-1)], n_kept[ends] - 1, n_kept[each_before]
    inserted = n_until + np.arange(len(each_before))
    shows_step = np.ones(len(shown) + len(inserted), np.bool_)
    shows_step[inserted] = False
    source = np.full(len(shows_step), -1)
    source[shows_step] = shown
    ends = ends + each_before.searchsorted(regular.ends)
    finals = ends[b]
    finals[inside] = inserted[each_before.searchsorted(before)]
    return RowPlan(source, ends, finals)


@functools.lru_cache(maxsize=16)
def _regular_plan(n_steps: int, n_envs: int) -> RowPlan:
    """Of a rollout of transitions only in which no episode ends but at the last step."""
    source = np.full((n_envs, n_steps + 1), -1)
    source[:, :-1] = np.arange(n_steps * n_envs).reshape(n_steps, n_envs).T
    ends = np.arange(n_steps, source.size, n_steps + 1)
    for array in (source, ends):
        array.flags.writeable = False
    return RowPlan(source.reshape(-1), ends, _NO_FINALS)


def trajectories(rollout: Rollout, start: int, stop: int) -> Rollout:
    """The trajectories `start:stop` of a rollout, without statistics and seeds; only final observations are copied.

    Args:
        rollout: Any.
        start: The first trajectory.
        stop: The one after the last.

    Returns:
        A rollout of `stop - start` trajectories.
    """
    wanted = (rollout.final_index[:, 1] >= start) & (rollout.final_index[:, 1] < stop)
    final_index = rollout.final_index[wanted] - np.array([0, start], np.int32)
    return _part(rollout, slice(start, stop), wanted, final_index)


def acting_trajectories(rollout: Rollout) -> Rollout:
    """The trajectories of a rollout that have a transition.

    Args:
        rollout: Any.

    Returns:
        The rollout itself where all of them have; else one of those that have, copied, without statistics.
    """
    if rollout.valid is None:
        return rollout
    acts: NDArray[np.bool_] = np.logical_or.reduce(rollout.valid, axis=0)
    if acts.all():
        return rollout
    wanted = acts[rollout.final_index[:, 1]]
    final_index = rollout.final_index[wanted]
    final_index[:, 1] = np.cumsum(acts)[final_index[:, 1]] - 1
    return _part(rollout, acts.nonzero()[0], wanted, final_index)


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


def _part(
    rollout: Rollout,
    part: slice | NDArray[np.int64],
    wanted: NDArray[np.bool_],
    final_index: NDArray[np.int32],
) -> Rollout:
    """Some trajectories; `wanted` are their final observations, which belong at `final_index` in the part."""

    def steps(observation: Observation) -> Observation:
        return {path: leaf[:, part] for path, leaf in observation.items()}

    def select(observation: Observation, index: slice | NDArray[np.int64] | NDArray[np.bool_]) -> Observation:
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
        final_index=final_index,
        episodes=(),
        env_seeds=(),
    )


def _check_final_observations(rollout: Rollout, missing: NDArray[np.bool_]) -> None:
    if missing.any():
        t, b = (int(index[0]) for index in np.nonzero(missing))
        raise InvalidRolloutError(
            f"rollout {rollout.sequence} of {rollout.actor_id!r}: the episode of environment {b} ended at step {t}, "
            "and neither final_index nor a reset row after it has its final observation; expected one of them, because "
            "a transition needs its true next observation; record them as the vector environment's autoreset mode says"
        )
