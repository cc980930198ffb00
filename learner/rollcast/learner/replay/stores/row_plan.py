"""Plans the rows of rollouts in a ring in which each step's next observation is in the next row."""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.queueing.queue import RolloutSlice, with_trajectories
from rollcast.services.errors import InvalidRolloutError
from rollcast.services.rollouts.rollouts import Rollout


class RowPlan(NamedTuple):
    """The rows of a rollout, counted from its first row: trajectory by trajectory, with one row after each last step.

    Attributes:
        source: int64 `[n_rows]`, the step t * B + b of a row; -1: only an observation.
        ends: int64 `[B]`, the row after each trajectory, for the observation after its last step.
        finals: int64 `[N]`, the rows of the final observations.
        previous: int64 `[B * (K - 1)]`, the rows before each first step, for the frames before it; empty if K is 1.
    """

    source: NDArray[np.int64]
    ends: NDArray[np.int64]
    finals: NDArray[np.int64]
    previous: NDArray[np.int64]


_NO_ROWS = np.zeros(0, np.int64)


def plan_rows(rollout: Rollout, *, n_previous: int = 0) -> RowPlan:
    """Gives every step a row, and every final observation the row after its step.

    Reset rows are kept, because their observation is the final observation of the previous step. Rows before all
    transitions of their trajectory have no such step, and are omitted.

    Args:
        rollout: Any rollout.
        n_previous: K - 1, the rows for the frames before each trajectory.

    Returns:
        The plan. A trajectory takes at most 2 T + K - 1 rows. It takes T + K if no episode ends inside and all its rows
            are kept.

    Raises:
        InvalidRolloutError: An episode ended before the last step, and its final observation is missing.
    """
    n_steps, n_envs = rollout.reward.shape
    regular = _regular_plan(n_steps, n_envs, n_previous)
    valid, final_index = rollout.valid, rollout.final_index
    missing = np.logical_or(rollout.terminated[:-1], rollout.truncated[:-1])
    if valid is not None:
        missing &= valid[:-1] & valid[1:]
    elif not len(final_index) and not missing.any():
        return regular
    regular = _regular_plan(n_steps, n_envs, 0)
    t, b = final_index.T.astype(np.int64)
    inside = t < n_steps - 1  # at the last step, it takes the row of the observation after the last step
    missing[t[inside], b[inside]] = False
    _check_final_observations(rollout, missing)
    # rows of the regular plan that get a row for a final observation behind them
    before = (b * (n_steps + 1) + t)[inside]
    each_before = before.copy()
    each_before.sort()
    if (each_before[1:] == each_before[:-1]).any():
        each_before = np.unique(each_before)
    shown, ends, n_until = regular.source, regular.ends, each_before + 1
    if valid is not None:
        # keeps each trajectory from its first transition on
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
    plan = RowPlan(source, ends, finals, _NO_ROWS)
    return _with_previous(plan, b, n_previous) if n_previous else plan


@functools.lru_cache(maxsize=16)
def _regular_plan(n_steps: int, n_envs: int, n_previous: int) -> RowPlan:
    """Plans a rollout that has only transitions, and in which episodes end at the last step at most."""
    source = np.full((n_envs, n_steps + 1), -1)
    source[:, :-1] = np.arange(n_steps * n_envs).reshape(n_steps, n_envs).T
    ends = np.arange(n_steps, source.size, n_steps + 1)
    plan = RowPlan(source.reshape(-1), ends, _NO_ROWS, _NO_ROWS)
    if n_previous:
        plan = _with_previous(plan, _NO_ROWS, n_previous)
    for array in plan:
        array.flags.writeable = False
    return plan


def _with_previous(plan: RowPlan, b: NDArray[np.int64], n_previous: int) -> RowPlan:
    """Returns a plan with extra rows before each trajectory; `b` has the trajectory of each final observation."""
    n_envs = len(plan.ends)
    n_before = n_previous * np.arange(1, n_envs + 1)  # new rows before the steps of each trajectory
    ends = plan.ends + n_before
    first = np.concatenate([np.zeros(min(n_envs, 1), np.int64), ends[:-1] + 1])
    previous = (first[:, None] + np.arange(n_previous)).reshape(-1)
    source = np.full(len(plan.source) + len(previous), -1)
    is_known = np.ones(len(source), np.bool_)
    is_known[previous] = False
    source[is_known] = plan.source
    return RowPlan(source, ends, plan.finals + n_before[b], previous)


def acting_trajectories(rollout: Rollout) -> Rollout:
    """Drops the trajectories of a rollout without a transition.

    Args:
        rollout: Any rollout.

    Returns:
        The same rollout if every trajectory has a transition; else a copy of those with one, without statistics.
    """
    if rollout.valid is None:
        return rollout
    acts: NDArray[np.bool_] = np.logical_or.reduce(rollout.valid, axis=0)
    if acts.all():
        return rollout
    kept = acts.nonzero()[0]
    wanted = acts[rollout.final_index[:, 1]]
    final_index = rollout.final_index[wanted]
    final_index[:, 1] = np.cumsum(acts)[final_index[:, 1]] - 1

    return with_trajectories(rollout, kept, wanted, final_index, episodes=(), env_seeds=())


def fitting_slices(rollout: Rollout, fits: Callable[[Rollout], bool]) -> Iterator[Rollout]:
    """Cuts a rollout into slices that fit.

    Args:
        rollout: Any rollout.
        fits: Returns True if a slice is small enough. A single trajectory must fit.

    Yields:
        The slices, in order.
    """
    if fits(rollout):
        yield rollout
        return
    middle = rollout.n_envs // 2
    yield from fitting_slices(RolloutSlice(rollout, 0, middle).to_rollout(), fits)
    yield from fitting_slices(RolloutSlice(rollout, middle, rollout.n_envs).to_rollout(), fits)


def _check_final_observations(rollout: Rollout, missing: NDArray[np.bool_]) -> None:
    if missing.any():
        t, b = (int(index[0]) for index in np.nonzero(missing))
        raise InvalidRolloutError(
            f"rollout {rollout.sequence} of {rollout.actor_id!r}: the episode of environment {b} ended at step {t}, "
            "and neither final_index nor a reset row after it has its final observation; expected one of them, because "
            "a transition needs its true next observation; record it according to the vector environment's autoreset "
            "mode"
        )
