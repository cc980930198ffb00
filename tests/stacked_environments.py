"""An environment whose registered vector has other spaces than a single one, and takes narrow seeds, as ALE's does."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

# Importing the module registers the id.
STACKED_ID = f"{__name__}:StackedForTests-v0"
LENGTH = 5


class SingleEnv(gymnasium.Env[Any, Any]):
    """Shows how far it is as one number; an episode has 5 steps and earns what is done."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._n_steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._n_steps += 1
        return np.full(1, self._n_steps, np.float32), float(action), self._n_steps == LENGTH, False, {}


class StackedVectorEnv(VectorEnv):
    """Shows the last two numbers of each environment in one buffer; its seeds are signed 32-bit numbers."""

    def __init__(self, num_envs: int, n_stacked: int = 2) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = spaces.Box(-9, 9, (n_stacked, 1), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._shown = np.zeros((num_envs, n_stacked, 1), np.float32)
        self._n_steps = np.zeros(num_envs, np.int64)
        self.seeds: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            assert type(seed) is int
            self.seeds.append(seed)
            if seed + self.num_envs - 1 >= 2**31:
                raise OverflowError(f"seed {seed} of {self.num_envs} environments is no int32")
        self._n_steps[:] = 0
        self._shown[:] = 0.0
        return self._shown, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        resets = self._n_steps == LENGTH
        self._n_steps = np.where(resets, 0, self._n_steps + 1)
        self._shown[:, :-1] = self._shown[:, 1:]
        self._shown[:, -1, 0] = self._n_steps
        self._shown[resets] = 0.0
        ended = self._n_steps == LENGTH
        return self._shown, np.where(resets, 0.0, np.asarray(actions)), ended, np.zeros_like(ended), {}


gymnasium.register(STACKED_ID.rpartition(":")[2], entry_point=SingleEnv, vector_entry_point=StackedVectorEnv)
