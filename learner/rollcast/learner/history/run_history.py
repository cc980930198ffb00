"""Keeps the history of a learner process and its actors."""

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.acting.state_clock import StateClock
from rollcast.learner.history.activity_times import ActivityTimes, Span
from rollcast.learner.history.events import MAX_TEXT_LENGTH, N_EVENTS
from rollcast.learner.history.lanes import LaneTable
from rollcast.learner.history.points import (
    COARSE_S,
    FINE_S,
    N_COARSE,
    N_FINE,
    N_WHOLE,
    WHOLE_S,
    PointRing,
    Sample,
)
from rollcast.learner.history.recent import RecentCounts, RecentDurations, counts_by_lag
from rollcast.services.history.curves import MetricCurves, thinned
from rollcast.services.history.history import (
    MAX_COUNTED_LAG,
    EvaluationPoint,
    EventSeverity,
    HistoryEvent,
    HistoryPoint,
    Lane,
    LearnerActivity,
    MetricCurve,
    PolicyDelays,
)
from rollcast.services.joining.activity import ActingState, ActorActivity
from rollcast.services.limits.limits import MAX_TRACEBACK_LENGTH
from rollcast.services.limits.texts import shortened, shortened_traceback

# The largest numbers of lanes of actors, of evaluations, and of published versions.
MAX_LANES: Final = 2048
N_EVALUATIONS: Final = 1000
_N_VERSIONS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """The news since an earlier time; see `rollcast.services.history.history.HistoryUpdate`."""

    now_s: float
    points: tuple[HistoryPoint, ...]
    evaluations: tuple[EvaluationPoint, ...]
    lanes: tuple[Lane, ...]
    events: tuple[HistoryEvent, ...]
    delays: PolicyDelays
    curves: tuple[MetricCurve, ...]


class RunHistory:
    """The bounded history of one learner process. Any thread may call, but only the trainer's thread uses `activity`.

    Times are seconds since the history's construction. Answers get strictly increasing times under its lock. So a
    reader that passes the time of its last answer gets each item once.

    Attributes:
        activity: Sums the training thread's time by state.
        started_unix_s: The time of its construction, in seconds since 1970.

    Args:
        max_policy_lag: The largest allowed lag of the run; None: no limit.
        clock: Returns monotonic seconds; replaced in tests.
    """

    def __init__(self, *, max_policy_lag: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._max_policy_lag = max_policy_lag
        self.started_unix_s = time.time()
        self.activity = StateClock(LearnerActivity, clock)
        self._lock = threading.Lock()  # guards everything below
        self._points = (
            PointRing(FINE_S, N_FINE),
            PointRing(COARSE_S, N_COARSE),
            PointRing(WHOLE_S, N_WHOLE, grows=True),
        )
        self._events: deque[HistoryEvent] = deque(maxlen=N_EVENTS)
        self._evaluations: list[EvaluationPoint] = []
        self._curves = MetricCurves()
        held_state = ActingState.WAITING_FOR_CREDIT.value - 1
        self._actors = LaneTable(len(ActingState), max_lanes=MAX_LANES, held_state=held_state)
        self._learner = LaneTable(len(LearnerActivity), max_lanes=1)
        self._learner.open("")
        self._learner_until: tuple[float, tuple[float, ...]] = (0.0, (0.0,) * len(LearnerActivity))
        self._times: dict[str, ActivityTimes] = {}
        self._applied: dict[str, int] = {}
        self._published_s: OrderedDict[int, float] = OrderedDict()
        self._lags = RecentCounts(MAX_COUNTED_LAG + 1)
        self._data_age = RecentDurations()
        self._publish_lag = RecentDurations()

    def note(self, severity: EventSeverity, text: str, *, who: str = "", detail: str = "") -> None:
        """Notes an event: a `rollcast.learner.history.events.NoteEvent`."""
        with self._lock:
            self._events.append(
                HistoryEvent(
                    time_s=self._now(),
                    severity=severity,
                    who=who,
                    text=shortened(text, MAX_TEXT_LENGTH),
                    detail=shortened_traceback(detail, MAX_TRACEBACK_LENGTH),
                )
            )

    def evaluated(
        self, *, env_steps: int, policy_version: int, mean_return: float, interval: tuple[float, float], best: bool
    ) -> None:
        """Records an evaluation.

        Args:
            env_steps: The environment steps of training when the policy was due.
            policy_version: The policy's version.
            mean_return: The mean return of its episodes.
            interval: The 95 % confidence interval of the mean.
            best: True if no earlier version has a higher mean return.
        """
        with self._lock:
            self._evaluations.append(
                EvaluationPoint(
                    time_s=self._now(),
                    env_steps=env_steps,
                    policy_version=policy_version,
                    mean_return=mean_return,
                    ci_low=interval[0],
                    ci_high=interval[1],
                    best=best,
                )
            )
            self._evaluations = thinned(self._evaluations, N_EVALUATIONS)

    def recorded(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Records the finite numbers of a record of metrics.

        Args:
            env_steps: The environment steps of training.
            metrics: The values by name.
        """
        with self._lock:
            now = self._now()
            for metric, value in metrics.items():
                if math.isfinite(value):
                    self._curves.add(
                        MetricCurve(metric=metric, time_s=(now,), env_steps=(env_steps,), values=(float(value),))
                    )

    def connected(self, actor_id: str, held_since: Callable[[], float | None]) -> Callable[[], None]:
        """Starts or continues the lane of an actor that has opened a stream.

        Args:
            actor_id: The actor.
            held_since: Returns when the learner began to hold the actor's credit and to read no messages from it, by
                this history's clock; None: it does not. Called with the lock held.

        Returns:
            A function that ends the lane. It does nothing once the actor has opened a newer stream.
        """
        times = ActivityTimes()

        def since() -> float | None:
            held = held_since()
            return None if held is None else held - self._began

        with self._lock:
            self._times[actor_id] = times
            self._actors.open(actor_id, since)

        def disconnect() -> None:
            with self._lock:
                if self._times.get(actor_id) is times:
                    del self._times[actor_id]
                    self._applied.pop(actor_id, None)
                    self._actors.close(actor_id)

        return disconnect

    def acted(self, actor_id: str, activity: ActorActivity) -> None:
        """Takes an actor's report of its time."""
        with self._lock:
            now = self._now()
            times = self._times.get(actor_id)
            if times is None:
                return
            span = times.span(now, activity)
            if span is not None:
                self._actors.add(now, actor_id, span)
            version = activity.policy_version
            if version and self._applied.get(actor_id) != version:
                self._applied[actor_id] = version
                published_s = self._published_s.get(version)
                if published_s is not None:
                    lag_s = max(0.0, now - activity.policy_age_s - published_s)
                    self._publish_lag.add(now, np.array([lag_s]))

    def published(self, version: int) -> None:
        """Records that a version was published."""
        with self._lock:
            self._published_s[version] = self._now()
            if len(self._published_s) > _N_VERSIONS:
                self._published_s.popitem(last=False)

    def trained(self, policy_lag: NDArray[np.int64], data_age_s: Sequence[float]) -> None:
        """Counts the trajectories of an update.

        Args:
            policy_lag: int64 `[trajectories]`, the learner's version minus the version that acted.
            data_age_s: The time from the arrival of each rollout to the update.
        """
        with self._lock:
            now = self._now()
            if len(policy_lag):
                self._lags.add(now, counts_by_lag(policy_lag))
            if data_age_s:
                self._data_age.add(now, np.array(data_age_s))

    def sample(self, sample: Sample, *, is_training: bool = True) -> None:
        """Takes the present numbers. Called about once a second, even while the trainer is busy.

        Args:
            sample: The numbers; the history adds `waited_s`.
            is_training: False: the training thread has ended, and so does its lane.
        """
        seconds = self.activity.in_order()
        with self._lock:
            now = self._now()
            until_s, before = self._learner_until
            self._learner_until = now, seconds
            if is_training and now > until_s:
                spent = tuple(new - old for new, old in zip(seconds, before, strict=True))
                self._learner.add(now, "", Span(until_s, now, spent))
            self._learner.advance(now)
            self._actors.advance(now)
            for ring in self._points:
                ring.add(now, sample, waited_s=seconds[LearnerActivity.WAITING.value - 1])

    def news(self, after_s: float | None) -> News:
        """Returns the history after a time.

        Args:
            after_s: The `now_s` of the caller's last answer; None: the whole history.
        """
        after = -1.0 if after_s is None else after_s
        with self._lock:
            now = self._now()
            data_age = self._data_age.quantiles(now, 0.5, 0.99)
            publish_lag = self._publish_lag.quantiles(now, 0.5, 0.99)
            return News(
                now_s=now,
                points=tuple(point for ring in self._points for point in ring.after(after)),
                evaluations=tuple(one for one in self._evaluations if one.time_s > after),
                lanes=(*self._learner.after(after), *self._actors.after(after)),
                events=tuple(event for event in self._events if event.time_s > after),
                delays=PolicyDelays(
                    trajectories_by_lag=tuple(self._lags.total(now).tolist()),
                    max_policy_lag=self._max_policy_lag,
                    data_age_p50_s=data_age[0],
                    data_age_p99_s=data_age[1],
                    publish_lag_p50_s=publish_lag[0],
                    publish_lag_p99_s=publish_lag[1],
                ),
                curves=self._curves.after(after),
            )

    def _now(self) -> float:
        return self._clock() - self._began
