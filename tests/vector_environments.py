"""Environments that misbehave, or tell more than arrays, for vector environments; importable by their processes."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.unit.actor.sample_environments import NumberedEnv, SampledEnv


class MisbehavingEnv(NumberedEnv):
    """Does `what` in step number `at`; in `reset` where `at` is 0, in the constructor where it is -1."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def __init__(self, what: str = "", at: int = 2) -> None:
        super().__init__((100,))
        self.what, self.at = what, at
        self.is_open = True
        if at == -1:
            self._misbehave()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return (self._misbehave() if self.at == 0 else observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.is_open:
            raise RuntimeError("the simulator is closed")
        observation, reward, terminated, truncated, _ = super().step(action)
        if self.n_steps == self.at:
            observation = self._misbehave()
        return observation, reward, terminated, truncated, {}

    def close(self) -> None:
        self.is_open = False
        if self.what == "raise in close":
            raise RuntimeError("cannot close")

    def _misbehave(self) -> Any:
        observation = self.observation()
        match self.what:
            case "raise":
                raise ValueError("the pole is broken")
            case "exit":
                sys.exit(3)
            case "end":
                os._exit(4)
            case "end with 1":
                os._exit(1)
            case "raise without a message":
                raise WithoutMessageError
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                threading.Event().wait()
            case "dtype":
                return observation.astype(np.complex64)
            case "shape":
                return observation[:2]
            case "list":
                return [observation.tolist()]
            case "close":
                self.close()
        return observation


class WithoutMessageError(Exception):
    """Raises another error where it is printed."""

    def __str__(self) -> str:
        raise LookupError("no such text")


class OtherSpaceEnv(MisbehavingEnv):
    """Another space than MisbehavingEnv's."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)


class TellingEnv(NumberedEnv):
    """Has infos of all kinds, in some steps only; what it was told in `options`, too."""

    def __init__(self, lengths: tuple[int, ...] = (3, 1, 4, 2)) -> None:
        super().__init__(lengths)
        self.difficulty, self.lock, self.last_error = 1, None, None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        return observation, {"episode": self.episode, "options": str(options)} if self.episode % 2 else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, _ = super().step(action)
        info: dict[str, Any] = {"pixels": np.full(3, self.n_steps), "deep": {"name": self.name}}
        return *result, info if self.n_steps % 2 else {}

    def render(self) -> Any:
        return np.full((2, 2), self.n_steps)

    def add(self, number: int, *, factor: int = 1) -> int:
        return self.difficulty + number * factor


class OneInfoEnv(NumberedEnv):
    """Every environment fills the same dictionary and the same array, in steps and resets."""

    info: dict[str, Any] = {"steps": np.zeros(2), "deep": {}}  # noqa: RUF012 - shared, as an environment must not

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        return observation, self._filled("reset")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, _ = super().step(action)
        return *result, self._filled("step")

    def _filled(self, doing: str) -> dict[str, Any]:
        self.info["steps"][:] = self.n_steps
        self.info["deep"] |= {"name": self.name, "doing": doing}
        return self.info


class GrowingInfoEnv(NumberedEnv):
    """Fills the same list, set and tuple in every step, and empties them in resets."""

    def __init__(self) -> None:
        super().__init__((3,))
        self.info: dict[str, Any] = {"seen": [], "kinds": set(), "pair": ([], {"deep": []})}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        for container in self._containers():
            container.clear()
        return observation, self.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, _ = super().step(action)
        for container in self._containers():
            (container.add if isinstance(container, set) else container.append)(self.n_steps)
        return *result, self.info

    def _containers(self) -> tuple[Any, ...]:
        first, second = self.info["pair"]
        return self.info["seen"], self.info["kinds"], first, second["deep"]


class LargeInfoEnv(NumberedEnv):
    """Infos that no pipe's buffer holds."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, _ = super().step(action)
        return *result, {"large": np.arange(300_000) + self.n_steps}


class UnsendableInfoEnv(NumberedEnv):
    """Infos, and an attribute, that cannot leave their process."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, info = super().step(action)
        return *result, {"lock": self.lock, **info}


class TwoReasonsError(Exception):
    """Can be pickled, but not unpickled: pickle calls it with one argument."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second


class UnreadableInfoEnv(NumberedEnv):
    """Infos, and an attribute, that leave their process, but cannot be read again."""

    last_error = TwoReasonsError("no", "never")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, info = super().step(action)
        return *result, {"error": self.last_error, **info}


class UnreadableSpaceEnv(NumberedEnv):
    """Metadata that leave their process, but cannot be read again."""

    metadata = {"error": UnreadableInfoEnv.last_error}  # noqa: RUF012 - gymnasium's own declaration


class ClosingEnv(SampledEnv):
    """Writes a file when it is closed; the number of its observations is in that file's name."""

    def __init__(self, closed: Path, n_values: int) -> None:
        super().__init__(spaces.Box(-1, 1, (n_values,)), spaces.Discrete(2))
        self.closed = closed / str(n_values)

    def close(self) -> None:
        self.closed.touch()


class DrawingEnv(gymnasium.Env[Any, Any]):
    """Observations and rewards drawn from its generator and the action; its own buffer, written to again and again."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        self.buffer = np.zeros(2)
        self.last_action: Any = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.buffer[:] = self.np_random.random(2)
        return self.buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.buffer += self.np_random.random(2) + action + self.last_action
        self.last_action = action
        draw = self.np_random.random()
        return self.buffer, float(self.buffer[0]), draw < 0.2, draw > 0.9, {"draw": draw} if draw > 0.5 else {}
