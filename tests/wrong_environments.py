"""Environments that do what they must not, importable by actor processes: `tests.wrong_environments:WrongEnv`."""

import functools
import multiprocessing
import sys
from typing import Any, Final

import gymnasium
import numpy as np

from tests.environments import CountingEnv

REWARDS: Final[dict[str, Any]] = {
    "nan": np.nan,
    "inf": np.inf,
    "too large": 1e300,
    "text": "1",
    "none": None,
    "complex": 1j,
    "two": np.ones(2),
    "bytes": b"1",
}


class WrongEnv(CountingEnv):
    """Does something wrong in its third step; what, `what` says."""

    def __init__(self, what: str = "nan") -> None:
        super().__init__(n_steps=1000)
        self._what = what
        if what == "token":
            self.observation_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = super().reset(seed=seed)
        return result[0] if self._what == "bare reset" else result

    def step(self, action: int) -> Any:
        result = list(super().step(action))
        if self._step == 3:
            if self._what == "exit":
                sys.exit()
            if self._what == "four":
                return tuple(result[:4])
            if self._what == "ended":
                result[2] = "False"
            if self._what in REWARDS:
                result[1] = REWARDS[self._what]
        return tuple(result)

    def _observe(self) -> Any:
        if self._what == "token":
            return 7 if self._step == 3 else 2
        observation = super()._observe()
        if self._step == 3 and self._what == "sight":
            observation[2] = np.nan
        return observation


make_exit = functools.partial(WrongEnv, "exit")


class ParentEnv(CountingEnv):
    """Has a process of its own, which computes its observations."""

    def __init__(self) -> None:
        super().__init__()
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_add_one, args=(theirs,), daemon=True)
        process.start()
        ours.send(41)
        assert ours.recv() == 42
        process.join()


def _add_one(pipe: Any) -> None:
    pipe.send(pipe.recv() + 1)
