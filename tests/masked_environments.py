"""Environments with action masks that fail loudly on an action that is not allowed."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class MaskedCorridor(gymnasium.Env[dict[str, Any], int]):
    """Eight cells; the right key opens the door to the next one, and opening all of them takes 7 steps and gives 1.

    In cell p key 3 p + 1 (modulo 8) is right. It is always allowed, with 3 others drawn anew in every step, each of
    which costs 0.05 and changes nothing; the rest raises. Whoever plays any allowed key opens 4 doors in the 16 steps
    of an episode and has about 0; 1 is the best there is. At the end nothing is allowed.

    Args:
        in_info: The mask is in `info` and not in the observation.
    """

    def __init__(self, in_info: bool = False) -> None:
        self.action_space = spaces.Discrete(8)
        cell = spaces.Discrete(8)
        self.observation_space: spaces.Space[Any] = (
            cell if in_info else spaces.Dict({"action_mask": spaces.MultiBinary(8), "cell": cell})
        )
        self._in_info = in_info
        self._cell = self._n_steps = 0
        self._mask = np.zeros(8, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cell = self._n_steps = 0
        return self._observe(has_ended=False)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._mask[action]:
            raise ValueError(f"key {action} is not allowed, the mask is {self._mask}")
        self._n_steps += 1
        is_right = action == self._right_key
        self._cell += int(is_right)
        terminated, truncated = self._cell == 7, self._n_steps == 16
        observation, info = self._observe(has_ended=terminated or truncated)
        return observation, 1.0 / 7.0 if is_right else -0.05, terminated, truncated and not terminated, info

    @property
    def _right_key(self) -> int:
        return (3 * self._cell + 1) % 8

    def _observe(self, *, has_ended: bool) -> tuple[Any, dict[str, Any]]:
        self._mask = np.zeros(8, np.int8)
        if not has_ended:
            self._mask[self._right_key] = 1
            self._mask[self.np_random.choice(np.flatnonzero(self._mask == 0), 3, replace=False)] = 1
        if self._in_info:
            return self._cell, {} if has_ended else {"action_mask": self._mask}
        return {"action_mask": self._mask.copy(), "cell": self._cell}, {}


class NothingAllowed(MaskedCorridor):
    """Allows nothing in the middle of an episode, and takes anything."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._mask = np.ones(8, np.int8)
        observation, reward, terminated, truncated, info = super().step(action)
        return {**observation, "action_mask": np.zeros(8, np.int8)}, reward, terminated, truncated, info
