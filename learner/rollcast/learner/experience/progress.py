"""Counts the progress of training: steps, updates, rates, policy lag and returns."""

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rollcast.learner.experience.experience import Experience
from rollcast.learner.history.recent import counts_by_lag
from rollcast.services.history.history import MAX_COUNTED_LAG

# The window of the rates, in seconds.
_RATE_WINDOW_S = 5.0

# Counters that a checkpoint keeps unchanged: attributes of `Progress`, without the underscore.
_COUNTERS = ("env_steps", "updates", "episodes", "lag_sum", "lag_count", "lag_max", "waited_s")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSnapshot:
    """Progress at one moment; lags and waits cover the whole run.

    Attributes:
        env_steps: The environment steps from the actors, over all agents.
        updates: The number of updates.
        seconds: The seconds since the start.
        env_steps_per_second: The rate of the last 5 seconds.
        updates_per_second: The rate of the last 5 seconds.
        policy_lag_mean: The mean over all trajectories of (newest policy version - version that acted).
        policy_lag_max: The largest such lag.
        episodes: The number of finished episodes.
        mean_return: The mean return of the last 100 episodes; None before the first.
        waiting_fraction: The share of its time that the trainer waited for batches.
    """

    env_steps: int
    updates: int
    seconds: float
    env_steps_per_second: float
    updates_per_second: float
    policy_lag_mean: float
    policy_lag_max: int
    episodes: int
    mean_return: float | None
    waiting_fraction: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecentDelays:
    """Lags and waits since the last record.

    Attributes:
        policy_lag_mean: As in `ProgressSnapshot`; NaN without a trajectory.
        policy_lag_max: As in `ProgressSnapshot`; NaN without a trajectory.
        waiting_fraction: The share of its time that the trainer waited for batches.
        trajectories_by_lag: The number of trajectories of each lag, from `counts_by_lag`.
    """

    policy_lag_mean: float = math.nan
    policy_lag_max: float = math.nan
    waiting_fraction: float = 0.0
    trajectories_by_lag: tuple[int, ...] = ()


class _AtRecord(NamedTuple):
    """Counters of the run at a record."""

    time: float
    lag_sum: int = 0
    lag_count: int = 0
    waited_s: float = 0.0


class TrainingProgress:
    """The counters of a run. The trainer's thread records; any thread takes snapshots.

    Args:
        n_return_episodes: The number of last episodes in the mean return.
    """

    def __init__(self, n_return_episodes: int = 100) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._started = time.monotonic()
        self._env_steps = self._updates = self._episodes = 0
        self._lag_sum = self._lag_count = self._lag_max = 0
        self._waited_s = 0.0
        # The counters at the last record, the lags since then, and those of that record.
        self._at_record = _AtRecord(self._started)
        self._recent_lag_max = 0
        self._recent_lags = np.zeros(MAX_COUNTED_LAG + 1, np.int64)
        self._recorded = RecentDelays()
        self._returns: deque[float] = deque(maxlen=n_return_episodes)
        self._marks: deque[tuple[float, int, int]] = deque([(self._started, 0, 0)])

    @property
    def env_steps(self) -> int:
        """The number of environment steps from the actors."""
        return self._env_steps

    @property
    def episodes(self) -> int:
        """The number of episodes that ended in these steps."""
        return self._episodes

    @property
    def n_return_episodes(self) -> int:
        """The number of last episodes in the mean return."""
        return self._returns.maxlen or 0

    def record(self, experience: Experience) -> None:
        """Counts an update, and the steps and episodes of its `Experience`."""
        lag = experience.policy_lag
        now = time.monotonic()
        with self._lock:
            self._env_steps += experience.env_steps
            self._updates += 1
            if len(lag):
                self._lag_sum += int(lag.sum())
                self._lag_count += len(lag)
                self._recent_lag_max = max(self._recent_lag_max, int(lag.max()))
                self._recent_lags += counts_by_lag(lag)
                self._lag_max = max(self._lag_max, self._recent_lag_max)
            self._waited_s += experience.waited_s
            self._episodes += experience.n_episodes
            self._returns.extend(experience.returns)
            if now - self._marks[-1][0] >= _RATE_WINDOW_S / 50:
                self._marks.append((now, self._env_steps, self._updates))
                while now - self._marks[0][0] > _RATE_WINDOW_S and len(self._marks) > 2:
                    self._marks.popleft()

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, as JSON values."""
        with self._lock:
            return {
                **{name: getattr(self, f"_{name}") for name in _COUNTERS},
                "seconds": time.monotonic() - self._started,
                "returns": list(self._returns),
            }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continues to count from an earlier `state`. The time between the two processes does not count."""
        now = time.monotonic()
        with self._lock:
            for name in _COUNTERS:
                setattr(self, f"_{name}", state[name])
            self._started = now - state["seconds"]
            self._at_record = _AtRecord(now, self._lag_sum, self._lag_count, self._waited_s)
            self._returns.clear()
            self._returns.extend(state["returns"])
            self._marks = deque([(now, self._env_steps, self._updates)])

    def recent_mean_return(self) -> float | None:
        """Returns the mean return of the last `n_return_episodes`; None if fewer have ended."""
        with self._lock:
            if len(self._returns) < self.n_return_episodes:
                return None
            return sum(self._returns) / len(self._returns)

    def recent_returns(self) -> tuple[float, ...]:
        """Returns the returns of the last `n_return_episodes` finished episodes."""
        with self._lock:
            return tuple(self._returns)

    def end_record(self) -> RecentDelays:
        """Returns lags and waits since the last call, for a record, and restarts their measurement."""
        now = time.monotonic()
        with self._lock:
            self._recorded = self._recent(now)
            self._at_record = _AtRecord(now, self._lag_sum, self._lag_count, self._waited_s)
            self._recent_lag_max = 0
            self._recent_lags[:] = 0
            return self._recorded

    def recent_lag(self) -> tuple[float, int]:
        """Returns the mean and the largest policy lag since the last record, or, without new trajectories, before it.

        Both are 0 before the first trajectory.
        """
        with self._lock:
            has_any = self._lag_count > self._at_record.lag_count
            recent = self._recent(time.monotonic()) if has_any else self._recorded
        return (0.0, 0) if math.isnan(recent.policy_lag_mean) else (recent.policy_lag_mean, int(recent.policy_lag_max))

    def _recent(self, now: float) -> RecentDelays:
        before = self._at_record
        n, seconds = self._lag_count - before.lag_count, now - before.time
        return RecentDelays(
            policy_lag_mean=(self._lag_sum - before.lag_sum) / n if n else math.nan,
            policy_lag_max=self._recent_lag_max if n else math.nan,
            waiting_fraction=min(1.0, (self._waited_s - before.waited_s) / seconds) if seconds > 0 else 0.0,
            trajectories_by_lag=tuple(self._recent_lags.tolist()),
        )

    def snapshot(self) -> ProgressSnapshot:
        """Returns the progress at this moment."""
        now = time.monotonic()
        with self._lock:
            seconds = now - self._started
            then, steps_then, updates_then = self._marks[0]
            window_s = max(now - then, 1e-9)
            return ProgressSnapshot(
                env_steps=self._env_steps,
                updates=self._updates,
                seconds=seconds,
                env_steps_per_second=(self._env_steps - steps_then) / window_s,
                updates_per_second=(self._updates - updates_then) / window_s,
                policy_lag_mean=self._lag_sum / self._lag_count if self._lag_count else 0.0,
                policy_lag_max=self._lag_max,
                episodes=self._episodes,
                mean_return=sum(self._returns) / len(self._returns) if self._returns else None,
                waiting_fraction=self._waited_s / seconds if seconds > 0 else 0.0,
            )
