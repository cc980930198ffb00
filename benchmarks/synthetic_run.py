"""A run made of numbers: what a learner with many actors and an hour of history would tell of itself."""

import dataclasses
import math
import random
import threading
import time

import numpy as np

from rollcast.services.history.history import (
    EvaluationPoint,
    EventSeverity,
    HistoryEvent,
    HistoryPoint,
    HistoryUpdate,
    Lane,
    LearnerActivity,
    PolicyDelays,
    RunFacts,
)
from rollcast.services.joining.activity import ActingState
from rollcast.services.replay.replay import ACTORS, ReplayStatus, ReplayWaiting
from rollcast.services.status.status import ActorInfo, ActorState, EvaluationStatus, LearnerStatus, Phase

STEPS_A_SECOND = 41_200
TRACEBACK = """Traceback (most recent call last):
  File "environments/arm.py", line 88, in step
    raise OSError("the arm does not answer")
OSError: the arm does not answer"""


class SyntheticRun:
    """A source of history, as HistoryServicer asks it: `hour_s` long at its begin, and longer with every second.

    Args:
        n_actors: The number of actors.
        hour_s: The length of the run at its begin, in seconds.
        names: The names of the first actors.
    """

    def __init__(self, n_actors: int = 200, hour_s: float = 3600.0, names: tuple[str, ...] = ("left-arm",)) -> None:
        self.names = [*names, *(f"node{slot % 9}-{slot}" for slot in range(len(names), n_actors))][:n_actors]
        self._random = np.random.default_rng(3)
        self._before_s = hour_s
        self._began_at = time.monotonic()
        self._lock = threading.Lock()
        self.phase = Phase.TRAINING
        self.run = RunFacts(
            env_id="LunarLander-v3",
            algorithm="ppo",
            run_dir="runs/lander-3",
            seed=3,
            stop_return=200.0,
            started_unix_s=float(int(time.time() - hour_s)),
            software_version="0.1.0",
        )

    def history(self, after_s: float | None) -> HistoryUpdate:
        """Returns what is new since a time; None: everything."""
        with self._lock:
            now_s = float(int(self._before_s + time.monotonic() - self._began_at))
            begin = 0.0 if after_s is None else after_s
            return HistoryUpdate(
                now_s=now_s,
                run=self.run if after_s is None else None,
                status=self._status(now_s),
                actors=tuple(self._actor(slot, now_s) for slot in range(len(self.names))),
                points=self._points(begin, now_s, whole=after_s is None),
                evaluations=tuple(e for e in self._evaluations(now_s) if e.time_s > begin or after_s is None),
                lanes=self._lanes(begin, now_s, whole=after_s is None),
                events=tuple(e for e in self._events(now_s) if e.time_s > begin or after_s is None),
                delays=PolicyDelays(
                    trajectories_by_lag=(620, 240, 80, 9),
                    max_policy_lag=4,
                    data_age_p50_s=0.42,
                    data_age_p99_s=1.7,
                    publish_lag_p50_s=0.012,
                    publish_lag_p99_s=0.08,
                ),
            )

    def _status(self, now_s: float) -> LearnerStatus:
        return LearnerStatus(
            phase=self.phase,
            waiting_for="rollouts from 200 connected actors (left-arm has been quiet for 14 s)",
            waiting_s=0.2,
            env_steps=int(now_s * STEPS_A_SECOND),
            seconds=now_s,
            env_steps_per_second=STEPS_A_SECOND,
            updates=int(now_s * 4),
            updates_per_second=4.0,
            policy_version=int(now_s * 4),
            policy_lag_mean=0.4,
            policy_lag_max=3,
            queue_size=48,
            queue_capacity=64,
            actors_alive=len(self.names) - 1,
            actors_expected=len(self.names),
            episodes=int(now_s * 3),
            mean_return=self._mean_return(now_s),
            stale_trajectories=17,
            run_dir="runs/lander-3",
            waiting_fraction=0.38,
            software_version="0.1.0",
            algorithm="ppo",
            replay=ReplayStatus(
                size=640_000,
                capacity=1_000_000,
                n_bytes=34_600_000,
                inserted=640_000,
                sampled=2_560_000,
                min_size=1000,
                difference=120.0,
                min_diff=-400.0,
                max_diff=400.0,
                waiting=(ReplayWaiting(reason="the limiter", seconds=0.3, who=ACTORS),),
            ),
            evaluation=EvaluationStatus(
                evaluators_alive=1,
                evaluations=len(self._evaluations(now_s)),
                policy_version=int(now_s * 4) - 20,
                mean_return=self._mean_return(now_s) + 12,
                best_policy_version=int(now_s * 4) - 300,
                best_mean_return=214.3,
            ),
        )

    def _actor(self, slot: int, now_s: float) -> ActorInfo:
        worst = slot == 0
        return ActorInfo(
            actor_id=self.names[slot],
            slot=slot,
            incarnation=3 if worst else 1,
            state=ActorState.LOST if worst else ActorState.STREAMING,
            peer=f"192.0.2.{slot % 250}",
            n_envs=8,
            rollouts=int(now_s * 2),
            env_steps=int(now_s * STEPS_A_SECOND / len(self.names)),
            policy_version=int(now_s * 4) - slot % 3,
            idle_s=14.0 if worst else 0.3,
            software_version="0.1.0",
            last_error="the arm does not answer" if worst else "",
            acting_state=None if worst else ActingState.ACTING,
            applied_policy_version=int(now_s * 4) - slot % 3,
            env_steps_per_second=0.0 if worst else STEPS_A_SECOND / len(self.names),
        )

    @staticmethod
    def _mean_return(time_s: float) -> float:
        return -180 + 390 * (1 - math.exp(-time_s / 1500)) + 9 * math.sin(time_s / 37)

    def _points(self, begin: float, now_s: float, *, whole: bool) -> tuple[HistoryPoint, ...]:
        spans = [(1.0, 300), (15.0, 240), (30.0, 500)]
        points = []
        for interval_s, remembered in spans:
            oldest = max(begin if not whole else 0.0, now_s - interval_s * remembered)
            first = math.floor(oldest / interval_s) + 1
            points += [self._point(k * interval_s, interval_s) for k in range(first, int(now_s // interval_s) + 1)]
        return tuple(points)

    def _point(self, time_s: float, interval_s: float) -> HistoryPoint:
        noise = random.Random(time_s).gauss(0, 1)
        return HistoryPoint(
            time_s=time_s,
            interval_s=interval_s,
            env_steps=int(time_s * STEPS_A_SECOND),
            env_steps_per_second=STEPS_A_SECOND + 1500 * noise,
            updates=int(time_s * 4),
            policy_version=int(time_s * 4),
            mean_return=self._mean_return(time_s) + 3 * noise,
            episodes=int(time_s * 3),
            waiting_fraction=min(1.0, max(0.0, 0.38 + 0.05 * noise)),
            queue_size=48,
            actors_alive=len(self.names) - 1,
            replay_size=640_000,
        )

    def _evaluations(self, now_s: float) -> list[EvaluationPoint]:
        found: list[EvaluationPoint] = []
        best = -math.inf
        for time_s in range(120, int(now_s), 120):
            mean = self._mean_return(time_s) + 12 + 6 * math.sin(time_s)
            found.append(
                EvaluationPoint(
                    time_s=float(time_s),
                    env_steps=time_s * STEPS_A_SECOND,
                    policy_version=time_s * 4,
                    mean_return=mean,
                    ci_low=mean - 14,
                    ci_high=mean + 14,
                    best=mean > best,
                )
            )
            best = max(best, mean)
        return found

    def _lanes(self, begin: float, now_s: float, *, whole: bool) -> tuple[Lane, ...]:
        lanes = []
        for slot, name in enumerate(["", *self.names]):
            for interval_s, remembered in ((1.0, 300), (15.0, 240)):
                first = 0 if whole else int(begin // interval_s)
                n = min(int(now_s // interval_s) - first, remembered)
                if n > 0:
                    end_s = (now_s // interval_s) * interval_s
                    lanes.append(Lane(actor_id=name, interval_s=interval_s, end_s=end_s, shares=self._shares(slot, n)))
        return tuple(lanes)

    def _shares(self, number: int, n: int) -> np.ndarray:
        if not number:
            means = [0.38, 0.5, 0.06, 0.06, 0.0]
            assert len(means) == len(LearnerActivity)
        elif number == 1:
            return np.zeros((n, len(ActingState)), np.uint8)
        else:
            waits = 0.05 + 0.4 * ((number * 37) % 10) / 10
            means = [0.0, 0.8 - waits, 0.1, waits, 0.06, 0.04]
        drawn = self._random.gamma(np.maximum(np.array(means) * 12, 1e-3), size=(n, len(means)))
        return np.floor(255 * drawn / drawn.sum(axis=1, keepdims=True)).astype(np.uint8)

    def _events(self, now_s: float) -> list[HistoryEvent]:
        found = [
            HistoryEvent(time_s=float(at), severity=EventSeverity.INFO, who="", text=f"checkpoint {at * 4:08d} kept")
            for at in range(300, int(now_s), 300)
        ]
        found += [
            HistoryEvent(
                time_s=float(at), severity=EventSeverity.WARNING, who=self.names[0], text="its connection was lost"
            )
            for at in range(700, int(now_s), 700)
        ]
        found += [
            HistoryEvent(
                time_s=float(at) + 0.5,
                severity=EventSeverity.ERROR,
                who=self.names[0],
                text="OSError: the arm does not answer",
                detail=TRACEBACK,
            )
            for at in range(900, int(now_s), 900)
        ]
        return sorted(found, key=lambda event: event.time_s)


def finished(run: SyntheticRun) -> RunFacts:
    """The run's facts, for a process of the learner that begins now."""
    return dataclasses.replace(run.run, started_unix_s=time.time())
