"""Critics: networks that estimate the value of observations and actions. They are never sent to actors."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete
from torch import Tensor, nn

from rollcast.actor.policies.frame_stacks import stacked_space
from rollcast.actor.policies.networks import build_network
from rollcast.services.policies.policies import AUTO_NETWORK, PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces

# Outputs of a custom network for an observation, before the action is appended.
_N_OWN_FEATURES = 256


class ValueCritic(nn.Module):
    """V(x): a network of the policy's architecture with one output, sharing none of the policy's parameters."""

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, substep_key: str) -> None:
        """Builds the network.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture of the policy, which the critic shares.
            substep_key: The substep whose observations are valued.

        Raises:
            ConfigurationError: If no network fits the observation space.
        """
        super().__init__()
        # gain 1.0: the first values are of the order of one reward, so errors start small
        self.network = build_network(_seen(spaces[substep_key], spec), 1, spec, output_gain=1.0)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Estimates the values of observations.

        Args:
            observation: `[N, ...]` for every leaf of the observation space.

        Returns:
            float32 `[N]`.
        """
        values: Tensor = self.network(observation)
        return values.squeeze(-1)


class RecurrentValueCritic(nn.Module):
    """V(x, s) for a recurrent policy: a network of the observation and of the policy's state after it.

    The policy's state says what was seen before, and actors send it. So the critic needs no memory of its own, whose
    state at the start of a rollout nobody would know. No gradient of a value flows into the policy: they share no
    parameter.
    """

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, substep_key: str) -> None:
        """Builds the network.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture of the policy; the critic has its hidden layers.
            substep_key: The substep whose observations are valued.

        Raises:
            ConfigurationError: If no network fits the observation space.
        """
        super().__init__()
        state = Box(-np.inf, np.inf, (spec.state_size,), np.float32)
        seen = Dict({"observation": _seen(spaces[substep_key], spec), "state": state})
        self.network = build_network(seen, 1, dataclasses.replace(spec, recurrence="none"), output_gain=1.0)

    def forward(self, observation: Mapping[str, Tensor], state: Tensor) -> Tensor:
        """Estimates the values of observations.

        Args:
            observation: `[N, ...]` for every leaf of the observation space.
            state: float32 `[N, S]`, the policy's states after these observations; gets no gradient.

        Returns:
            float32 `[N]`.
        """
        seen = {f"observation/{path}" if path else "observation": leaf for path, leaf in observation.items()}
        values: Tensor = self.network({**seen, "state": state.detach()})
        return values.squeeze(-1)


class TwinCritic(nn.Module):
    """Q_1 and Q_2: two networks of the policy's architecture. Callers use the smaller of both values.

    Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods",
    https://arxiv.org/abs/1802.09477, algorithm 1. For Discrete actions each network returns the values of all actions;
    for Box the action is an input, concatenated with the vector part of the observation.
    """

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, substep_key: str) -> None:
        """Builds the networks.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture of the policy, which the critics share.
            substep_key: The substep whose observations and actions are valued.

        Raises:
            ConfigurationError: If no network fits the observation space.
        """
        super().__init__()
        self.networks = nn.ModuleList(_action_value_network(spaces[substep_key], spec) for _ in range(2))
        self._trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]

    def forward(self, observation: Mapping[str, Tensor], action: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Estimates the values of actions.

        Args:
            observation: `[N, ...]` for every leaf of the observation space.
            action: float32 `[N, D]` in [-1, 1] for Box, None for Discrete.

        Returns:
            The values of both networks: each float32 `[N]` for Box, `[N, n]` for Discrete.
        """
        if action is None:
            first, second = (network(observation) for network in self.networks)
        else:
            first, second = (network(observation, action).squeeze(-1) for network in self.networks)
        return first, second

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freezes the parameters, so that a backward pass differentiates the actions only and costs half."""
        for parameter in self._trainable:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in self._trainable:
                parameter.requires_grad_(True)


def _seen(spaces: SubstepSpaces, spec: PolicySpec) -> Space[Any]:
    """Returns the space of what networks see: with a frame stack, of stacks."""
    return stacked_space(spaces.observation, spec.frame_stack)


def _action_value_network(spaces: SubstepSpaces, spec: PolicySpec) -> nn.Module:
    if isinstance(spaces.action, Discrete):
        return build_network(_seen(spaces, spec), int(spaces.action.n), spec, output_gain=1.0)
    return _ActionInput(spaces, spec)


class _ActionInput(nn.Module):
    """A network that takes an observation and an action."""

    def __init__(self, spaces: SubstepSpaces, spec: PolicySpec) -> None:
        super().__init__()
        action = Box(-1.0, 1.0, (math.prod(spaces.action.shape or ()),), np.float32)
        self.features: nn.Module | None = None
        seen = _seen(spaces, spec)
        if spec.network != AUTO_NETWORK:
            # a custom network takes the environment's observations only, so the action is appended to its outputs
            self.features = build_network(seen, _N_OWN_FEATURES, spec)
            seen = Box(-np.inf, np.inf, (_N_OWN_FEATURES,), np.float32)
        joint = Dict({"observation": seen, "action": action})
        self.network = build_network(joint, 1, dataclasses.replace(spec, network=AUTO_NETWORK), output_gain=1.0)

    def forward(self, observation: Mapping[str, Tensor], action: Tensor) -> Tensor:
        seen = observation if self.features is None else {"": self.features(observation)}
        joint = {f"observation/{path}" if path else "observation": leaf for path, leaf in seen.items()}
        values: Tensor = self.network({**joint, "action": action})
        return values
