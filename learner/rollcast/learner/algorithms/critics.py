"""Critics: what an observation is worth. They live with the learner and never travel."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from torch import Tensor, nn

from rollcast.actor.policies.networks import build_network
from rollcast.services.policies.policies import AUTO_NETWORK, PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces

# What a network of one's own makes of an observation before the action comes to it.
_N_OWN_FEATURES = 256


class ValueCritic(nn.Module):
    """V(x): a network of the policy's architecture with one output, sharing none of the policy's parameters."""

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, substep_key: str) -> None:
        """Builds the network.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture; the policy's.
            substep_key: Whose observations are valued.

        Raises:
            ConfigurationError: If no network fits the observation space.
        """
        super().__init__()
        # 1.0: the first values are then of the order of one reward, not of one return, and errors start small.
        self.network = build_network(spaces[substep_key].observation, 1, spec, output_gain=1.0)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Values observations.

        Args:
            observation: `[N, ...]` for every leaf of the observation space.

        Returns:
            float32 `[N]`.
        """
        values: Tensor = self.network(observation)
        return values.squeeze(-1)


class TwinCritic(nn.Module):
    """Q_1 and Q_2: two networks of the policy's architecture, of whose values the smaller is believed.

    Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods",
    https://arxiv.org/abs/1802.09477. For Discrete actions each gives the values of all of them; for Box the action is
    an input, beside the vector that is part of the observation.
    """

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, substep_key: str) -> None:
        """Builds the networks.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture; the policy's.
            substep_key: Whose observations and actions are valued.

        Raises:
            ConfigurationError: If no network fits the observation space.
        """
        super().__init__()
        self.networks = nn.ModuleList(_action_value_network(spaces[substep_key], spec) for _ in range(2))
        self._trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]

    def forward(self, observation: Mapping[str, Tensor], action: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Values actions.

        Args:
            observation: `[N, ...]` for every leaf of the observation space.
            action: float32 `[N, D]` in [-1, 1] for Box, None for Discrete.

        Returns:
            Both opinions: each float32 `[N]` for Box, `[N, n]` for Discrete.
        """
        if action is None:
            first, second = (network(observation) for network in self.networks)
        else:
            first, second = (network(observation, action).squeeze(-1) for network in self.networks)
        return first, second

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Takes its parameters out of graphs, so that only actions are differentiated: half of a backward pass."""
        for parameter in self._trainable:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in self._trainable:
                parameter.requires_grad_(True)


def _action_value_network(spaces: SubstepSpaces, spec: PolicySpec) -> nn.Module:
    if isinstance(spaces.action, Discrete):
        return build_network(spaces.observation, int(spaces.action.n), spec, output_gain=1.0)
    return _ActionInput(spaces, spec)


class _ActionInput(nn.Module):
    """Values an observation together with an action."""

    def __init__(self, spaces: SubstepSpaces, spec: PolicySpec) -> None:
        super().__init__()
        action = Box(-1.0, 1.0, (math.prod(spaces.action.shape or ()),), np.float32)
        self.features: nn.Module | None = None
        seen = spaces.observation
        if spec.network != AUTO_NETWORK:
            # It takes the environment's observations and nothing else: the action comes to what it makes of them.
            self.features = build_network(spaces.observation, _N_OWN_FEATURES, spec)
            seen = Box(-np.inf, np.inf, (_N_OWN_FEATURES,), np.float32)
        joint = Dict({"observation": seen, "action": action})
        self.network = build_network(joint, 1, dataclasses.replace(spec, network=AUTO_NETWORK), output_gain=1.0)

    def forward(self, observation: Mapping[str, Tensor], action: Tensor) -> Tensor:
        seen = observation if self.features is None else {"": self.features(observation)}
        joint = {f"observation/{path}" if path else "observation": leaf for path, leaf in seen.items()}
        values: Tensor = self.network({**joint, "action": action})
        return values
