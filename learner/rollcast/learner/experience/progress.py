"""How far training has come: counters, rates, policy lag, returns."""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rollcast.learner.experience.experience import Experience

# Rates are taken over this many of the last seconds.
_RATE_WINDOW_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSnapshot:
    """Progress at one moment.

    Attributes:
        env_steps: Environment steps that have come from the actors, every agent's.
        updates: Updates done.
        seconds: Since the start.
        env_steps_per_second: Over the last seconds.
        updates_per_second: Over the last seconds.
        policy_lag_mean: Mean over all trajectories of (version that learnt - version that acted).
        policy_lag_max: The largest.
        episodes: Episodes finished.
        mean_return: Of the last 100 episodes; None before the first.
        waiting_fraction: Share of the time the trainer spent waiting for batches.
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


class TrainingProgress:
    """Counts. The trainer's thread records; any thread takes snapshots.

    Args:
        n_return_episodes: Over how many of the last episodes the mean return is taken.
    """

    def __init__(self, n_return_episodes: int = 100) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._started = time.monotonic()
        self._env_steps = self._updates = self._episodes = 0
        self._lag_sum = self._lag_count = self._lag_max = 0
        self._waited_s = 0.0
        self._returns: deque[float] = deque(maxlen=n_return_episodes)
        self._marks: deque[tuple[float, int, int]] = deque([(self._started, 0, 0)])

    @property
    def env_steps(self) -> int:
        """Environment steps that have come from the actors."""
        return self._env_steps

    @property
    def episodes(self) -> int:
        """Episodes that have ended in them."""
        return self._episodes

    @property
    def n_return_episodes(self) -> int:
        """Number of episodes in the mean return."""
        return self._returns.maxlen or 0

    def record(self, experience: Experience) -> None:
        """Counts an update, and what has come from the actors for it."""
        lag = experience.policy_lag
        now = time.monotonic()
        with self._lock:
            self._env_steps += experience.env_steps
            self._updates += 1
            if len(lag):
                self._lag_sum += int(lag.sum())
                self._lag_count += len(lag)
                self._lag_max = max(self._lag_max, int(lag.max()))
            self._waited_s += experience.waited_s
            self._episodes += len(experience.episodes)
            self._returns.extend(episode.episode_return for episode in experience.episodes)
            if now - self._marks[-1][0] >= _RATE_WINDOW_S / 50:
                self._marks.append((now, self._env_steps, self._updates))
                while now - self._marks[0][0] > _RATE_WINDOW_S and len(self._marks) > 2:
                    self._marks.popleft()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON has it."""
        with self._lock:
            return {
                "env_steps": self._env_steps,
                "updates": self._updates,
                "episodes": self._episodes,
                "lag_sum": self._lag_sum,
                "lag_count": self._lag_count,
                "lag_max": self._lag_max,
                "waited_s": self._waited_s,
                "seconds": time.monotonic() - self._started,
                "returns": list(self._returns),
            }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on counting, seconds too, from where `state` was taken; what lay between does not count."""
        now = time.monotonic()
        with self._lock:
            self._env_steps, self._updates, self._episodes = state["env_steps"], state["updates"], state["episodes"]
            self._lag_sum, self._lag_count, self._lag_max = state["lag_sum"], state["lag_count"], state["lag_max"]
            self._waited_s, self._started = state["waited_s"], now - state["seconds"]
            self._returns.clear()
            self._returns.extend(state["returns"])
            self._marks = deque([(now, self._env_steps, self._updates)])

    def recent_mean_return(self) -> float | None:
        """Mean return of the last `n_return_episodes`; None until that many have ended."""
        with self._lock:
            if len(self._returns) < self.n_return_episodes:
                return None
            return sum(self._returns) / len(self._returns)

    def snapshot(self) -> ProgressSnapshot:
        """Everything at this moment."""
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
