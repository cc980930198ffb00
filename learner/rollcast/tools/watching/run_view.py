"""Keeps the history that a learner has sent, ready for drawing."""

import dataclasses
from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollcast.services.history.curves import MetricCurves, thinned
from rollcast.services.history.history import (
    EvaluationPoint,
    HistoryEvent,
    HistoryPoint,
    HistoryUpdate,
    MetricCurve,
    PolicyDelays,
    RunFacts,
    Shares,
)
from rollcast.services.joining.activity import ActingState
from rollcast.services.status.status import ActorInfo, LearnerStatus
from rollcast.tools.watching.lane_history import LaneHistory
from rollcast.tools.watching.point_history import PointHistory
from rollcast.tools.watching.ranking import ranked, silences
from rollcast.tools.watching.relays import RelayActors, relays

_MAX_EVENTS: Final = 500
_MAX_EVALUATIONS: Final = 2000
_MINUTE_S: Final = 60.0
_ACTING: Final = ActingState.ACTING.value - 1


class RunView:
    """A view of one run, across restarts of its learner. Used by one thread; another thread uses a `copy`.

    All times that it returns are seconds since 1970, by the learner's clock; `since_start` makes them relative to the
    run. Its memory is bounded, as in the learner. It keeps the points, evaluations and events of earlier processes of
    the learner, with a gap before those of the current process.

    Attributes:
        run: The properties of the run, as its newest process reports them; None before the first update.
        status: The last status; None before the first update.
        actors: All actors, by slot.
        delays: The ages of policies and rollouts during the last minute.
        now_s: The time of the last update, in seconds since the learner's process began to serve; None before the
            first one.
        started_unix_s: The start of the run, from which the page counts all times: the start of the oldest remembered
            process, or earlier if the run has trained for longer than this process; 0.0 before the first update.
        evaluations: The evaluations, the oldest first; thinned if there are very many, see `curves.thinned`.
        events: The last 500 events, the newest last.
    """

    def __init__(self) -> None:
        self.run: RunFacts | None = None
        self.status: LearnerStatus | None = None
        self.actors: tuple[ActorInfo, ...] = ()
        self.delays = PolicyDelays()
        self.now_s: float | None = None
        self.started_unix_s = 0.0
        self.evaluations: list[EvaluationPoint] = []
        self.events: deque[HistoryEvent] = deque(maxlen=_MAX_EVENTS)
        self._points = PointHistory()
        self._lanes = LaneHistory()
        self._curves = MetricCurves()

    def copy(self) -> "RunView":
        """Returns a copy that later updates do not change."""
        copied = RunView()
        copied.__dict__.update(self.__dict__)
        copied.evaluations, copied.events = self.evaluations.copy(), self.events.copy()
        copied._points, copied._lanes = self._points.copy(), self._lanes.copy()
        copied._curves = self._curves.copy()
        return copied

    def apply(self, update: HistoryUpdate) -> None:
        """Adds the new part of the history.

        Args:
            update: The next update. An update with a run is the first of a stream, and has the learner's whole history.
        """
        if update.run is not None:
            self._begin(update.run)
        started_unix_s = 0.0 if self.run is None else self.run.started_unix_s
        self.status, self.actors, self.delays, self.now_s = update.status, update.actors, update.delays, update.now_s
        if self.run is not None:
            # Of a resumed run, the status counts the time of earlier processes, too.
            trained_since = started_unix_s + update.now_s - update.status.seconds
            self.started_unix_s = min(self.started_unix_s, trained_since)
        self._points.add(update.points, started_unix_s)
        self._lanes.add(update.lanes, started_unix_s)
        self._lanes.keep({actor.actor_id for actor in update.actors})
        self.evaluations.extend(
            dataclasses.replace(evaluation, time_s=evaluation.time_s + started_unix_s)
            for evaluation in update.evaluations
        )
        self.evaluations = thinned(self.evaluations, _MAX_EVALUATIONS)
        for curve in update.curves:
            self._curves.add(curve, started_unix_s)
        self.events.extend(dataclasses.replace(event, time_s=event.time_s + started_unix_s) for event in update.events)

    @property
    def now_unix_s(self) -> float | None:
        """The time of the last update, in seconds since 1970; None before the first."""
        return None if self.now_s is None or self.run is None else self.run.started_unix_s + self.now_s

    def since_start(self, unix_s: float) -> float:
        """Returns the seconds from the start of the run until a time; see `started_unix_s`."""
        return unix_s - self.started_unix_s

    @property
    def clock_s(self) -> float:
        """The time of the last update, in seconds since the start of the run; 0.0 before the first update."""
        now_unix_s = self.now_unix_s
        return 0.0 if now_unix_s is None else self.since_start(now_unix_s)

    def points(self, last_s: float | None = None) -> tuple[HistoryPoint, ...]:
        """Returns the points to draw, the oldest first: old points are coarse, recent ones fine.

        They do not overlap. `point_history.segments` splits them at gaps.

        Args:
            last_s: The period to return, in seconds before the last update; None: the whole run.

        Returns:
            At most some 2000 points, with `time_s` in seconds since 1970.
        """
        points = self._points.points()
        now_unix_s = self.now_unix_s
        if last_s is None or now_unix_s is None:
            return points
        return tuple(point for point in points if point.time_s > now_unix_s - last_s)

    def last_minute(self) -> tuple[HistoryPoint, ...]:
        """Returns the points of the last minute, one per second, with `time_s` in seconds since 1970."""
        now_unix_s = self.now_unix_s
        return () if now_unix_s is None else self._points.latest(_MINUTE_S, now_unix_s)

    def curves(self) -> dict[str, MetricCurve]:
        """Returns the curves by name of the metric, with times in seconds since 1970."""
        return {curve.metric: curve for curve in self._curves.after()}

    def lane(self, actor_id: str, span_s: float, n_cells: int) -> Shares:
        """Returns the lane of the last `span_s` seconds, in cells of equal length; it ends with the last update.

        Cells are means over intervals of 1 s in the last 300 s, and of 15 s before that.

        Args:
            actor_id: The actor's name; empty: the learner.
            span_s: Seconds, above 0.
            n_cells: The number of cells, at least 1.

        Returns:
            uint8 `[n_cells, states]`, the oldest first: the share of each state in 255ths; the states are those of
            `states.looks(actor_id)`. Zeros: not known.
        """
        return self._lanes.cells(actor_id, now_unix_s=self.now_unix_s or 0.0, span_s=span_s, n_cells=n_cells)

    def shares(self, actor_id: str, last_s: float = _MINUTE_S) -> NDArray[np.float64] | None:
        """Returns the share of each state in the known part of the last seconds.

        Args:
            actor_id: The actor's name; empty: the learner.
            last_s: Seconds, up to 300.

        Returns:
            `[states]`, with the sum 1; None if nothing is known.
        """
        return self._lanes.mean_shares(actor_id, now_unix_s=self.now_unix_s or 0.0, span_s=last_s)

    def ranked_actors(self) -> list[ActorInfo]:
        """Returns the actors, the worst off first; see `ranking.ranked`."""

        def acting_share(actor_id: str) -> float | None:
            shares = self.shares(actor_id)
            return None if shares is None else float(shares[_ACTING])

        return ranked(self.actors, acting_share, self.silences())

    def silences(self) -> dict[str, float]:
        """Returns the seconds of silence of each silent actor, by name; see `ranking.silences`."""
        return silences(self.actors, self._lanes.unheard_s)

    def relays(self) -> tuple[RelayActors, ...]:
        """Returns the relays that actors connect through, the worst off first; see `relays.relays`."""
        return relays(self.actors, self.silences())

    def unheard_s(self, actor_id: str) -> float | None:
        """Returns the seconds since an actor's last report of its state, to 1 s; None if there was none."""
        return self._lanes.unheard_s(actor_id)

    def _begin(self, run: RunFacts) -> None:
        """Prepares for the whole history of a learner's process: of the known process, or of a new one."""
        if self.run is None:
            self.started_unix_s = run.started_unix_s
        elif run.started_unix_s != self.run.started_unix_s:
            self._points.begin_process(run.started_unix_s)
            self._lanes.begin_process(run.started_unix_s)
            self.started_unix_s = min(self.started_unix_s, run.started_unix_s)
        self._points.begin_again()
        self.evaluations = [e for e in self.evaluations if e.time_s < run.started_unix_s]
        self._curves.forget_from(run.started_unix_s)
        self.events = deque((e for e in self.events if e.time_s < run.started_unix_s), _MAX_EVENTS)
        self.run = run
