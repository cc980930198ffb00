"""Policies that act, with weights; and batches of what they may see."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces, flatten_observation

VECTOR = Box(-1.0, 1.0, (4,), np.float32)
SMALL = PolicySpec(hidden_sizes=(16, 8))


def spaces_of(
    observation: gymnasium.Space[Any] = VECTOR, action: gymnasium.Space[Any] | None = None
) -> dict[str, SubstepSpaces]:
    """Returns the spaces of a flat environment; three actions, unless they are given."""
    return {FLAT_SUBSTEP: SubstepSpaces(observation=observation, action=Discrete(3) if action is None else action)}


def noisy(spaces: EnvironmentSpaces, spec: PolicySpec = SMALL, *, seed: int = 0, scale: float = 0.3) -> TorchPolicy:
    """Returns a policy whose weights are far enough from their first values to tell mistakes apart."""
    torch.manual_seed(seed)
    policy = TorchPolicy(spaces, spec)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return policy


def state_of(spaces: EnvironmentSpaces, spec: PolicySpec = SMALL, seed: int = 0) -> PolicyState:
    """Returns the weights of such a policy."""
    return noisy(spaces, spec, seed=seed).state_arrays()


def loaded(spaces: EnvironmentSpaces, spec: PolicySpec = SMALL, *, seed: int = 0, **arguments: Any) -> Policy:
    """Returns version 1 of a policy that acts."""
    policy = make_policy(spaces, spec, seed=seed, **arguments)
    policy.load(1, state_of(spaces, spec))
    return policy


def batch_of(space: gymnasium.Space[Any], n: int = 6) -> dict[str, NDArray[Any]]:
    """Returns samples of an observation space, the same each time."""
    space.seed(0)
    samples = [flatten_observation(space, space.sample()) for _ in range(n)]
    return {path: np.stack([sample[path] for sample in samples]) for path in samples[0]}


def tensors_of(batch: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    """Returns the same as tensors."""
    return {path: torch.from_numpy(leaf) for path, leaf in batch.items()}
