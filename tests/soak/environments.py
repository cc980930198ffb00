"""An environment that takes its time, so that a soak leaves cores to others."""

import time
from typing import Any

import gymnasium


class _Paced(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], step_s: float) -> None:
        super().__init__(env)
        self._step_s = step_s

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)  # what a simulator takes: it waits for nothing
        return super().step(action)


def paced_cartpole(step_s: float = 0.0) -> gymnasium.Env[Any, Any]:
    """CartPole-v1, `step_s` seconds a step."""
    return _Paced(gymnasium.make("CartPole-v1"), step_s)
