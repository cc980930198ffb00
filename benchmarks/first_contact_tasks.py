"""The tasks of `benchmarks.first_contact` that need more than an id of gymnasium's."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import FlattenObservation, TimeLimit, TransformObservation
from numpy.typing import NDArray

Vector = NDArray[np.float32]


def cartpole_large() -> gymnasium.Env[Vector, np.int64]:
    """Makes CartPole-v1 whose observations are a thousand times as large."""
    return _scaled(1000.0)


def cartpole_small() -> gymnasium.Env[Vector, np.int64]:
    """Makes CartPole-v1 whose observations are a hundredth as large."""
    return _scaled(0.01)


def _scaled(factor: float) -> gymnasium.Env[Vector, np.int64]:
    env = gymnasium.make("CartPole-v1")
    space = Box(-np.inf, np.inf, (4,), np.float32)
    return TransformObservation(env, lambda observation: (observation * factor).astype(np.float32), space)


def door_key() -> gymnasium.Env[Vector, np.int64]:
    """Makes MiniGrid-DoorKey-5x5 with what the agent sees, flat, in [0, 1]."""
    import minigrid  # noqa: F401 - registers its environments
    from minigrid.wrappers import ImgObsWrapper

    env = FlattenObservation(ImgObsWrapper(gymnasium.make("MiniGrid-DoorKey-5x5-v0")))
    return _as_float(env, 10.0)


def breakout() -> gymnasium.Env[Vector, np.int64]:
    """Makes MinAtar's Breakout with its planes, flat; 2,000 steps at most."""
    from minatar.gym import BaseEnv

    return _as_float(FlattenObservation(TimeLimit(BaseEnv("breakout"), 2000)), 1.0)


def _as_float(env: gymnasium.Env[NDArray[np.generic], np.int64], largest: float) -> gymnasium.Env[Vector, np.int64]:
    space = Box(0.0, 1.0, env.observation_space.shape, np.float32)
    return TransformObservation(env, lambda observation: observation.astype(np.float32) / np.float32(largest), space)


class TMaze(gymnasium.Env[Vector, np.int64]):
    """A corridor with a junction at its end; the first observation alone says which turn is right.

    After Bakker 2001, "Reinforcement Learning with Long Short-Term Memory", section 4: reward 4 for the right turn, and
    0 for the wrong one. At most twice as many steps as the corridor is long.

    Args:
        length: Steps to the junction.
    """

    def __init__(self, length: int = 10) -> None:
        self.observation_space = Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(3)  # on, left, right
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Vector, dict]:
        """Begins at the start, with another sign."""
        super().reset(seed=seed)
        self._at, self._steps = 0, 0
        self._sign = 1 if self.np_random.random() < 0.5 else -1
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict]:
        """Goes on, or turns at the junction."""
        self._steps += 1
        if self._at == self._length and action:
            return self._seen(), 4.0 if (action == 1) == (self._sign == 1) else 0.0, True, False, {}
        self._at = min(self._at + (action == 0), self._length)
        return self._seen(), 0.0, False, self._steps >= 2 * self._length, {}

    def _seen(self) -> Vector:
        return np.array([self._sign if self._at == 0 else 0, self._at == self._length, 1.0], np.float32)


class RepeatPrevious(gymnasium.Env[Vector, np.int64]):
    """Reward 1 for naming the card of four steps before, in each of the 50 steps that have one.

    After Morad et al. 2023, "POPGym: Benchmarking Partially Observable Reinforcement Learning", RepeatPrevious.

    Args:
        delay: Steps between a card and its name.
    """

    def __init__(self, delay: int = 4) -> None:
        self.observation_space = Box(0.0, 1.0, (4,), np.float32)
        self.action_space = Discrete(4)
        self._delay = delay

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Vector, dict]:
        """Draws the first card."""
        super().reset(seed=seed)
        self._cards = [int(self.np_random.integers(4))]
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict]:
        """Names a card, and draws the next."""
        due = len(self._cards) - 1 - self._delay
        reward = float(due >= 0 and self._cards[due] == action)
        self._cards.append(int(self.np_random.integers(4)))
        return self._seen(), reward, False, due == 49, {}

    def _seen(self) -> Vector:
        return np.eye(4, dtype=np.float32)[self._cards[-1]]
