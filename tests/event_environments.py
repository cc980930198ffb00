"""Environments that fire events, importable by actor processes."""

from typing import Any

import gymnasium
import numpy as np

from rollcast.actor.statistics.events import (
    define_episode_stats,
    define_epoch_stats,
    define_stats_grouping,
    define_step_stats,
)
from rollcast.actor.statistics.firing import FiresEvents
from tests.environments import CountingEnv


class StepEvents:
    @define_epoch_stats("mean", input_name="total", output_name="mean")
    @define_epoch_stats("sum", input_name="total", output_name="ever", cumulative=True)
    @define_episode_stats("sum", input_name="value", output_name="total")
    @define_stats_grouping("parity")
    def step_made(self, parity: str, value: float) -> None:
        """One for each step."""

    @define_epoch_stats("max")
    @define_episode_stats("max")
    @define_step_stats("count")
    def doorbell(self) -> None:
        """Rings twice in step 2."""


class WrapperEvents:
    @define_epoch_stats("mean")
    @define_episode_stats("count")
    def wrapped_step(self) -> None:
        """One for each step."""


class FiringEnv(FiresEvents, CountingEnv):
    """Episodes of `n_steps`; fires the number of each step, by parity; and in `reset`."""

    def __init__(self, n_steps: int = 5, truncate: bool = False) -> None:
        super().__init__(n_steps, truncate)
        self._events = self.events(StepEvents)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self._events.step_made("reset", 100.0)
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        result = super().step(action)
        self._events.step_made("odd" if self._step % 2 else "even", self._step)
        if self._step == 2:
            self._events.doorbell()
            self._events.doorbell()
        return result


class FiringWrapper(FiresEvents, gymnasium.Wrapper):
    """Fires beside what it wraps."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.events(WrapperEvents).wrapped_step()
        return super().step(action)


class NanEventEnv(FiringEnv):
    """Fires what is not finite."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._events.step_made("odd", float("nan"))
        return super().step(action)


def wrapped(n_steps: int = 5) -> gymnasium.Env[np.ndarray, int]:
    """An environment and a wrapper that both fire, in wrappers that do not."""
    return gymnasium.wrappers.TimeLimit(FiringWrapper(gymnasium.wrappers.TimeLimit(FiringEnv(n_steps), 100)), 100)


# Of an episode of 5 steps.
VALUES = {
    ("step_made", "total", "reset"): 100.0,
    ("step_made", "total", "odd"): 9.0,
    ("step_made", "total", "even"): 6.0,
    ("doorbell", ""): 2.0,
}
