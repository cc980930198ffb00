"""Environments whose every observation is known in advance, and others with any spaces."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

OBSERVATION_SPACES: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "box scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "box float64 matrix": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    "box bytes": spaces.Box(0, 255, (7,), np.uint8),
    "box int": spaces.Box(-5, 5, (2,), np.int32),
    "discrete": spaces.Discrete(5, start=-2),
    "multi discrete": spaces.MultiDiscrete([2, 4, 3], start=[1, 0, -1]),
    "multi discrete matrix": spaces.MultiDiscrete([[2, 4], [3, 2]]),
    "multi binary": spaces.MultiBinary((2, 3)),
    "dict": spaces.Dict(
        {"position": spaces.Box(-1.0, 1.0, (3,), np.float32), "key": spaces.Discrete(3), "doors": spaces.MultiBinary(2)}
    ),
    "nested": spaces.Tuple(
        (
            spaces.Discrete(2),
            spaces.Dict(
                {"a": spaces.Box(0, 255, (2, 2), np.uint8), "b": spaces.Tuple((spaces.MultiDiscrete([2, 2]),))}
            ),
        )
    ),
}

IMAGE_SPACES: dict[str, spaces.Space[Any]] = {
    "channel last": spaces.Box(0, 255, (40, 36, 3), np.uint8),
    "channel first": spaces.Box(0, 255, (2, 36, 44), np.uint8),
    "mixed": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (36, 36, 1), np.uint8),
            "arm": spaces.Box(-1.0, 1.0, (3,), np.float32),
            "depth": spaces.Box(0, 255, (1, 36, 40), np.uint8),
            "gear": spaces.Discrete(4),
        }
    ),
}

ACTION_SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "discrete start": spaces.Discrete(3, start=-1),
    "discrete int32": spaces.Discrete(4, dtype=np.int32),
    "multi discrete": spaces.MultiDiscrete([2, 4, 3], start=[1, 0, -1]),
    "multi discrete matrix": spaces.MultiDiscrete([[2, 4], [3, 2]]),
    "multi binary": spaces.MultiBinary(3),
    "multi binary matrix": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(-0.1, 0.1, (2,), np.float32),
    "box scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "box unbounded": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "box half": spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, 0.0]), dtype=np.float64),
}


class NumberedEnv(gymnasium.Env[Any, Any]):
    """Observation `[seed, episode, step]`, reward `step`; episode k has `lengths[k % len]` steps, odd ones are cut."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, lengths: tuple[int, ...] = (3, 1, 4, 2)) -> None:
        self.lengths = lengths
        self.name = 0
        self.episode = -1
        self.n_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.name = seed
        self.episode += 1
        self.n_steps = 0
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.n_steps += 1
        ended = self.n_steps == self.lengths[self.episode % len(self.lengths)]
        cut = self.episode % 2 == 1
        return self.observation(), float(self.n_steps), ended and not cut, ended and cut, {"name": self.name}

    def observation(self) -> Any:
        return np.array([self.name, self.episode, self.n_steps], dtype=np.float64)


class NestedNumberedEnv(NumberedEnv):
    """The same, as a Dict with a Tuple in it."""

    observation_space = spaces.Dict(
        {
            "name": spaces.Discrete(2**40),
            "when": spaces.Tuple((spaces.Discrete(1000), spaces.Box(-np.inf, np.inf, (1,), np.float32))),
        }
    )

    def observation(self) -> Any:
        return {"name": self.name, "when": (self.episode, np.array([self.n_steps], dtype=np.float32))}


class SampledEnv(gymnasium.Env[Any, Any]):
    """Samples its observations; ends after 3 to 8 steps; refuses actions that are not in its space."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.left = int(self.np_random.integers(3, 9))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # gymnasium warns of scalars that are no arrays
        value = np.asarray(action) if isinstance(self.action_space, spaces.Box) else action
        assert self.action_space.contains(value), action
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}


class FailingEnv(NumberedEnv):
    """Raises in a step or in a reset."""

    def __init__(self, fail_in_step: int | None = None, *, fail_in_reset: bool = False) -> None:
        super().__init__((5,))
        self.fail_in_step = fail_in_step
        self.fail_in_reset = fail_in_reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.fail_in_reset:
            raise OSError("no display")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.n_steps + 1 == self.fail_in_step:
            raise ValueError("the pole is broken")
        return super().step(action)


not_callable = 3


def not_an_environment() -> str:
    return "an environment"
