"""Simulators on a device: thousands of environments as rows of torch tensors, in one process.

    rollcast train --env-id examples.batched_simulator:BatchedCartPole-v0 --n-actors 1 --envs-per-actor 1024 \
        --env-kwargs '{"device": "cuda:0"}'

rollcast recognises these vectors by their attribute `device`. Policy and sampling then stay on this device, and
rollcast copies each rollout to main memory once. Isaac Lab, mjlab, ManiSkill and, through dlpack, Brax and MJX work
like this.
"""

import math
from abc import abstractmethod
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor


class BatchedSimulator(VectorEnv[Tensor, Tensor, Tensor]):
    """A vector of equal environments whose state is one tensor `[B, S]`. Environments reset in the same step.

    No step waits for the device: `torch.where` resets the environments that have ended, without an index.

    Args:
        num_envs: B.
        device: The device of all tensors.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - gymnasium's

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generator = torch.Generator(self.device)
        self._state = torch.empty(0)
        self._age = torch.zeros(num_envs, dtype=torch.int64, device=self.device)

    def reset(  # type: ignore[override]  # one seed for all
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Begins an episode in every environment; `seed` seeds their common generator."""
        del options
        if seed is not None:
            self._generator.manual_seed(seed)
        self._state = self._begin()
        self._age.zero_()
        return self._see(), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Steps every environment; the infos contain the last observations of ended episodes, `[B, ...]`."""
        self._state, reward, terminated = self._advance(actions)
        self._age += 1
        truncated = (self._age >= self.max_steps) & ~terminated
        ended, final = terminated | truncated, self._see()
        self._state = torch.where(ended[:, None], self._begin(), self._state)
        self._age.masked_fill_(ended, 0)
        return self._see(), reward, terminated, truncated, {"final_obs": final}

    # The largest number of steps of an episode.
    max_steps: int

    @abstractmethod
    def _begin(self) -> Tensor:
        """Draws first states, `[B, S]`."""

    @abstractmethod
    def _advance(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the next states, the rewards `[B]` and whether the episodes terminate, bool `[B]`."""

    def _see(self) -> Tensor:
        """Returns the observations of the states."""
        return self._state.clone()

    def _uniform(self, n: int, low: float, high: float) -> Tensor:
        drawn = torch.empty(self.num_envs, n, device=self.device)
        return drawn.uniform_(low, high, generator=self._generator)


class BatchedCartPole(BatchedSimulator):
    """gymnasium's CartPole-v1, with its equations and limits."""

    max_steps = 500
    single_observation_space = Box(-np.inf, np.inf, (4,), np.float32)
    single_action_space = Discrete(2)

    def _begin(self) -> Tensor:
        return self._uniform(4, -0.05, 0.05)

    def _advance(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, speed, angle, spin = self._state.unbind(dim=1)
        force = actions.to(torch.float32) * 20.0 - 10.0
        cos, sin = angle.cos(), angle.sin()
        push = (force + 0.05 * spin.square() * sin) / 1.1
        spin_up = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos.square() / 1.1))
        speed_up = push - 0.05 * spin_up * cos / 1.1
        state = torch.stack([x + 0.02 * speed, speed + 0.02 * speed_up, angle + 0.02 * spin, spin + 0.02 * spin_up], 1)
        fell = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 12.0 * math.pi / 180.0)
        return state, torch.ones_like(x), fell


class BatchedReacher(BatchedSimulator):
    """A point in a plane that actions push to a goal. Actions are continuous; only a time limit ends an episode."""

    max_steps = 50
    single_observation_space = Box(-np.inf, np.inf, (6,), np.float32)
    single_action_space = Box(-1.0, 1.0, (2,), np.float32)

    def _begin(self) -> Tensor:
        # place, velocity, goal
        state = self._uniform(6, -1.0, 1.0)
        state[:, 2:4].zero_()
        return state

    def _advance(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place, velocity, goal = self._state.split(2, dim=1)
        velocity = 0.9 * velocity + 0.1 * actions
        place = place + velocity
        distance = (place - goal).norm(dim=1)
        return torch.cat([place, velocity, goal], dim=1), -distance, torch.zeros_like(distance, dtype=torch.bool)


gymnasium.register("BatchedCartPole-v0", vector_entry_point=BatchedCartPole)
gymnasium.register("BatchedReacher-v0", vector_entry_point=BatchedReacher)
