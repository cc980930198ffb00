"""Environments for tests, importable by actor processes: `tests.environments:CountingEnv`."""

import os
import signal
import threading
import time
from typing import Any

import gymnasium
import numpy as np

from rollcast.actor.environments.structured import ActorId, Ended, StructuredEnv, Turn
from rollcast.actor.seeds import derive_seeds
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces


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


class SlowEnv(CountingEnv):
    """One whose steps take two hundredths of a second, as those of a simulator do."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(0.02)
        return super().step(action)


class ProgressEnv(CountingEnv):
    """The reward is the progress of training that it was told last; -1 before.

    Args:
        n_steps: Steps in an episode.
        raises_from: It raises when the progress is as large.
    """

    def __init__(self, n_steps: int = 5, raises_from: float = 2.0) -> None:
        super().__init__(n_steps)
        self._progress = -1.0
        self._raises_from = raises_from

    def set_progress(self, progress: float) -> None:
        if progress >= self._raises_from:
            raise ValueError(f"no level for {progress}")
        self._progress = progress

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self._progress, terminated, truncated, info


class ActionRewardEnv(CountingEnv):
    """The reward is the action."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(action), terminated, truncated, info


class Alternating(gymnasium.Env[np.ndarray, int]):
    """Reward 1 for two different actions in turn, within ten steps; the observation never changes.

    A policy without memory that never draws gets 0; one that draws evenly nearly always 1.
    """

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._actions: list[int] = []
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._actions.append(int(action))
        differ = len(set(self._actions)) > 1
        return np.zeros(2, np.float32), float(differ), differ, len(self._actions) == 10, {}


class HigherCard(StructuredEnv):
    """A game of two: both lay one of three cards at once, and the higher one wins 1 from the other."""

    def __init__(self) -> None:
        card = SubstepSpaces(
            observation=gymnasium.spaces.Box(0, 1, (1,), np.float32), action=gymnasium.spaces.Discrete(3), n_agents=2
        )
        self.spaces = {FLAT_SUBSTEP: card}
        self._players = (ActorId(FLAT_SUBSTEP, 0), ActorId(FLAT_SUBSTEP, 1))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        return Turn(observations={player: np.zeros(1, np.float32) for player in self._players})

    def step(self, actions: dict[ActorId, Any]) -> Turn:
        first, second = (int(actions[player]) for player in self._players)
        won = float(np.sign(first - second))
        rewards = dict(zip(self._players, (won, -won), strict=True))
        ended = dict.fromkeys(self._players, Ended(observation=np.zeros(1, np.float32)))
        return Turn(observations={}, rewards=rewards, ended=ended)


class RecallEnv(gymnasium.Env[np.ndarray, int]):
    """Shows in the first of three steps which of four actions will earn 1 in the last: who forgets it earns 0.25."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._wanted, self._step = int(self.np_random.integers(4)), 0
        return np.eye(4, dtype=np.float32)[self._wanted], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._step += 1
        is_last = self._step == 3
        return np.zeros(4, np.float32), float(is_last and action == self._wanted), is_last, False, {}


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


class NanEnv(CountingEnv):
    """Returns NaN in the third step."""

    def _observe(self) -> np.ndarray:
        observation = super()._observe()
        if self._step == 3:
            observation[1] = np.nan
        return observation


class HangingEnv(CountingEnv):
    """Never comes back from step number `hang_at`."""

    def __init__(self, hang_at: int = 3) -> None:
        super().__init__(n_steps=1000)
        self._hang_at = hang_at

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._step + 1 == self._hang_at:
            released = threading.Event()
            released.wait()
        return super().step(action)


class FailsWhereItIsEvaluated(CountingEnv):
    """An environment that raises at the reset of the first episode of an evaluation with seed 0."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if seed in derive_seeds([0], 1):
            raise RuntimeError("has lost its licence")
        return super().reset(seed=seed, options=options)


class Reaching(gymnasium.Env[np.ndarray, np.ndarray]):
    """Eight steps, in each of which an action in [-1, 1] costs its distance to the number that is seen."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._n_steps = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._n_steps += 1
        reward = -abs(float(action[0]) - float(self._seen[0]))
        return self._observe(), reward, False, self._n_steps == 8, {}

    def _observe(self) -> np.ndarray:
        self._seen = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self._seen
