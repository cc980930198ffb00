"""The figures of a run, with names and formats, for terminal and page."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rollcast.services.status.numbers import UNKNOWN, count, decimal, minutes, percent, period, rate, short_count
from rollcast.services.status.status import LearnerStatus
from rollcast.tools.watching import wording
from rollcast.tools.watching.run_view import RunView

# A trainer that waits for at least this share of its time needs attention.
_WAITS_OFTEN: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of a run.

    Attributes:
        name: Its name.
        text: The figure's value; "-" if it is not known.
        note: The figure's period, range, or related numbers; empty: none.
        share: The filled part of its gauge, 0 to 1; None: it has no gauge.
        title: Its meaning, in a sentence.
        is_notable: True: it needs attention.
    """

    name: str
    text: str
    note: str = ""
    share: float | None = None
    title: str = ""
    is_notable: bool = False


def rows(view: RunView) -> tuple[Row, ...]:
    """Returns the figures of a run, always in the same order. Without a replay buffer, its figures are missing."""
    status = view.status
    if status is None:
        return ()
    return (*_speed(view, status), *_ages(view), *_queue(status), *_replay(status), *_progress(view, status))


def _speed(view: RunView, status: LearnerStatus) -> Iterator[Row]:
    speed = wording.recent_rate(view)
    yield Row(
        name="env steps/s",
        text=rate(speed.per_second),
        note=f"mean of {minutes(speed.over_s)}",
        title="Environment steps that are trained on per second.",
    )
    waiting = wording.waiting_fraction(view)
    yield Row(
        name="trainer waits",
        text=percent(waiting),
        note="of 1 min",
        share=waiting,
        is_notable=waiting is not None and waiting >= _WAITS_OFTEN,
        title="The share of its time that the trainer waits for rollouts.",
    )
    known = bool(status.updates)
    yield Row(
        name="policy lag",
        text=decimal(status.policy_lag_mean) if known else UNKNOWN,
        note=f"mean; max {count(status.policy_lag_max)}, limit {count(view.delays.max_policy_lag)}"
        if known
        else "mean",
        title="Versions between the policy that acted and the policy that learns, since the last record.",
    )


def _ages(view: RunView) -> Iterator[Row]:
    delays = view.delays
    yield Row(
        name="data staleness",
        text=f"p50 {period(delays.data_age_p50_s)}",
        note=f"p99 {period(delays.data_age_p99_s)}, of 1 min",
        title="The time between a rollout's arrival at the learner and its training.",
    )
    yield Row(
        name="publish lag",
        text=f"p50 {period(delays.publish_lag_p50_s)}",
        note=f"p99 {period(delays.publish_lag_p99_s)}, of 1 min",
        title="The time between the publication of a policy and its use by an actor.",
    )


def _queue(status: LearnerStatus) -> Iterator[Row]:
    has_queue = bool(status.queue_capacity)
    yield Row(
        name="queue",
        text=f"{count(status.queue_size)} of {count(status.queue_capacity)}" if has_queue else UNKNOWN,
        note="trajectories",
        share=status.queue_size / status.queue_capacity if has_queue else None,
        title="Always full: actors wait for the learner. Always empty: the learner waits for actors.",
    )
    yield Row(
        name="dropped",
        text=count(status.stale_trajectories),
        note=f"too old; rejected {count(status.rejected_rollouts)}, sent twice {count(status.duplicate_rollouts)}",
        is_notable=bool(status.stale_trajectories or status.rejected_rollouts),
        title="Trajectories that were too old to train on; invalid rollouts; rollouts that came twice.",
    )


def _replay(status: LearnerStatus) -> Iterator[Row]:
    replay = status.replay
    if replay is None:
        return
    yield Row(
        name="buffer",
        text=f"{short_count(replay.size)} of {short_count(replay.capacity)}",
        note=f"entries, {short_count(replay.n_bytes)} bytes",
        share=replay.size / replay.capacity if replay.capacity else None,
        title="Entries of the replay buffer.",
    )
    limited = math.isfinite(replay.min_diff) and math.isfinite(replay.max_diff) and replay.max_diff > replay.min_diff
    waiting = "; ".join(f"{who.who or 'a reader'} for {period(who.seconds)}" for who in replay.waiting)
    yield Row(
        name="limiter",
        text=decimal(replay.difference),
        note=f"{decimal(replay.min_diff)} to {decimal(replay.max_diff)}; waits: {waiting or 'none'}",
        share=(replay.difference - replay.min_diff) / (replay.max_diff - replay.min_diff) if limited else None,
        title="Inserted minus sampled entries. At the upper limit actors wait, at the lower limit the trainer waits.",
    )


def _progress(view: RunView, status: LearnerStatus) -> Iterator[Row]:
    yield Row(
        name="env steps",
        text=count(status.env_steps),
        note=f"{count(status.episodes)} episodes",
        title="Environment steps that were trained on since the run started.",
    )
    yield Row(
        name="updates",
        text=count(status.updates),
        note=rate(status.updates_per_second),
        title="Updates of the networks since the run started.",
    )
    goal = None if view.run is None else view.run.stop_return
    yield Row(
        name="mean return",
        text=decimal(status.mean_return),
        note="last 100 episodes" if goal is None else f"goal {decimal(goal)}",
        title="The mean return of the last 100 episodes of training.",
    )
    yield from _evaluation(view, status)
    expected = f" of {count(status.actors_expected)}" if status.actors_expected else ""
    yield Row(
        name="actors",
        text=f"{count(status.actors_alive)}{expected}",
        note=f"policy v{count(status.policy_version)}",
        share=status.actors_alive / status.actors_expected if status.actors_expected else None,
        title="Actors whose stream is open.",
    )


def _evaluation(view: RunView, status: LearnerStatus) -> Iterator[Row]:
    """Yields the row of evaluations: from the status, else from the history of earlier processes of the learner."""
    title = "The mean return of the last evaluation of a policy."
    told = status.evaluation
    if told is not None and told.evaluations:
        low, high, version = told.ci_low, told.ci_high, told.policy_version
        best_return, best_version = told.best_mean_return, told.best_policy_version
        mean_return = told.mean_return
    elif view.evaluations:
        last, best = view.evaluations[-1], max(reversed(view.evaluations), key=lambda one: one.mean_return)
        low, high, version = last.ci_low, last.ci_high, last.policy_version
        best_return, best_version = best.mean_return, best.policy_version
        mean_return = last.mean_return
    else:
        if told is not None:
            yield Row(name="evaluation", text=UNKNOWN, note=f"{count(told.evaluators_alive)} evaluators", title=title)
        return
    note = f"{decimal(low)} to {decimal(high)}, v{count(version)}; best {decimal(best_return)}, v{count(best_version)}"
    yield Row(name="evaluation", text=decimal(mean_return), note=note, title=title)
