"""Environments for tests, importable by actor processes: `tests.environments:CountingEnv`."""

import os
import signal
from typing import Any

import gymnasium
import numpy as np


class CountingEnv(gymnasium.Env[np.ndarray, int]):
    """Observations `[episode, step, seed, 0]`; episodes of `n_steps`, ended by termination or truncation.

    Args:
        n_steps: Steps in an episode.
        truncate: End by truncation instead of termination.
    """

    def __init__(self, n_steps: int = 5, truncate: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._n_steps, self._truncate = n_steps, truncate
        self._episode = 0
        self._seed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self._seed = seed % 2**20
        self._episode += 1
        self._step = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._step += 1
        done = self._step == self._n_steps
        return self._observe(), float(self._step), done and not self._truncate, done and self._truncate, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._episode, self._step, self._seed, 0], np.float32)


class FailingEnv(CountingEnv):
    """Raises in step number `fail_at`."""

    def __init__(self, fail_at: int = 3) -> None:
        super().__init__(n_steps=1000)
        self._fail_at = fail_at

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._step + 1 == self._fail_at:
            raise RuntimeError("the simulator has lost its licence")
        return super().step(action)


class DyingEnv(CountingEnv):
    """Kills its own process in step number `die_at`."""

    def __init__(self, die_at: int = 40) -> None:
        super().__init__(n_steps=1000)
        self._die_at = die_at

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._step + 1 == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class UnmakeableEnv(CountingEnv):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no display")


class NanEnv(CountingEnv):
    """Returns NaN in the third step."""

    def _observe(self) -> np.ndarray:
        observation = super()._observe()
        if self._step == 3:
            observation[1] = np.nan
        return observation
