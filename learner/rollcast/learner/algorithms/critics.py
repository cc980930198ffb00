"""Critics: networks that estimate the value of observations and actions. They are never sent to actors."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete
from torch import Tensor, nn

from rollcast.actor.policies.features import feature_layout
from rollcast.actor.policies.frame_stacks import stacked_space
from rollcast.actor.policies.image_networks import orthogonal
from rollcast.actor.policies.mlp_function import mlp
from rollcast.actor.policies.network_arithmetic import hidden_dtype
from rollcast.actor.policies.network_size import layer_shapes
from rollcast.actor.policies.networks import AutoNetwork, build_network
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import AUTO_NETWORK, BUILT_IN_NETWORKS, Activation, PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces

# torch.nn.LayerNorm's.
LAYER_NORM_EPSILON: Final = 1e-5
# Outputs of a custom network for an observation, before the action is appended.
_N_OWN_FEATURES = 256


class ValueCritic(nn.Module):
    """V(x): a network of the policy's architecture with one output and its own parameters."""

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, substep_key: str) -> None:
        """Builds the network.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture of the policy, which the critic shares.
            substep_key: The substep whose observations the critic values.

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


class TorsoValueCritic(nn.Module):
    """V(x) with the policy's torso: separate layers on the torso's image features.

    The torso takes most of an update's time. So the torso runs once for policy and critic, and learns from both losses,
    as in the papers of IMPALA and PPO.
    """

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, substep_key: str) -> None:
        """Builds the layers.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture of the policy; the critic has hidden layers of the same sizes.
            substep_key: The substep whose observations the critic values.

        Raises:
            ConfigurationError: If the policy's network is custom or recurrent, or sees no image.
        """
        super().__init__()
        seen = _seen(spaces[substep_key], spec)
        layout = feature_layout(seen, spec.network) if spec.network in BUILT_IN_NETWORKS else None
        if layout is None or not layout.images or spec.state_size:
            raise ConfigurationError(
                f"share_torso: the network is {spec.network!r}, with recurrence {spec.recurrence!r}, for "
                f"{spaces[substep_key].observation}; expected a built-in network of images that is not recurrent; "
                "leave share_torso off"
            )
        shapes = layer_shapes(layout, 1, spec)
        gains = [math.sqrt(2.0)] * (len(shapes) - 1) + [1.0]
        self.layers = nn.ModuleList(
            orthogonal(nn.Linear(n_in, n_out), gain) for (n_in, n_out), gain in zip(shapes, gains, strict=True)
        )
        self._activation = spec.activation

    def forward(self, features: Tensor) -> Tensor:
        """Estimates values.

        Args:
            features: float32 `[N, F]`, from `TorchPolicy.features_of`.

        Returns:
            float32 `[N]`.
        """
        return mlp(features, list(self.layers.parameters()), self._activation).squeeze(-1)


class RecurrentValueCritic(nn.Module):
    """V(x, s) for a recurrent policy: a network of the observation and the policy's next state.

    The policy's state summarises earlier observations, and actors send that state. So the critic needs no recurrent
    state, which would be unknown at the start of a rollout. Policy and critic share no parameters, so values send no
    gradient into the policy.
    """

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, substep_key: str) -> None:
        """Builds the network.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture of the policy; the critic has hidden layers of the same sizes.
            substep_key: The substep whose observations the critic values.

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
            state: float32 `[N, S]`, the policy's states after these observations, without gradient.

        Returns:
            float32 `[N]`.
        """
        seen = {f"observation/{path}" if path else "observation": leaf for path, leaf in observation.items()}
        values: Tensor = self.network({**seen, "state": state.detach()})
        return values.squeeze(-1)


class CriticEnsemble(nn.Module):
    """Q_1 to Q_E: networks of the policy's architecture without shared parameters.

    For Discrete actions each network returns the values of all actions. For Box the action is an input, concatenated
    with the vector part of the observation. Two such networks are the twin critics of Fujimoto et al. 2018, "Addressing
    Function Approximation Error in Actor-Critic Methods", https://arxiv.org/abs/1802.09477.

    The linear layers of all networks are computed together; see `ensemble_mlp`. Custom networks and convolutions run
    one after another.
    """

    def __init__(
        self,
        spaces: EnvironmentSpaces,
        spec: PolicySpec,
        *,
        substep_key: str,
        n_critics: int = 2,
        layer_norm: bool = False,
    ) -> None:
        """Builds the networks.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture of the policy, which the critics share.
            substep_key: The substep whose observations and actions the critics value.
            n_critics: E, at least 1.
            layer_norm: Puts a layer norm between each hidden layer and its activation.

        Raises:
            ConfigurationError: If no network fits the observation space, or it has no hidden layer to normalise.
        """
        super().__init__()
        self.networks = nn.ModuleList(_action_value_network(spaces[substep_key], spec) for _ in range(n_critics))
        # Without norms, the state has no names for them, so twin critics keep the names of older versions.
        self.norms: nn.ModuleList | None = None
        if layer_norm:
            self.norms = nn.ModuleList(_layer_norms(network, spec) for network in self.networks)
        first = self.networks[0]
        self._activation = spec.activation
        # Inputs that depend on no parameter are the same for all networks.
        self._shares_inputs = isinstance(first, AutoNetwork | _ActionInput) and not first.learns_features
        self._trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]

    def __len__(self) -> int:
        """E."""
        return len(self.networks)

    def forward(
        self,
        observation: Mapping[str, Tensor],
        action: Tensor | None = None,
        *,
        members: Sequence[int] | None = None,
    ) -> Tensor:
        """Estimates the values of actions.

        Args:
            observation: `[N, ...]` for every leaf of the observation space.
            action: float32 `[N, D]` in [-1, 1] for Box, None for Discrete.
            members: The M networks to evaluate; None: all E.

        Returns:
            The values of each network: float32 `[M, N]` for Box, `[M, N, n]` for Discrete.
        """
        asked = list(range(len(self)) if members is None else members)
        networks = [self.networks[index] for index in asked]
        if action is None and not isinstance(networks[0], AutoNetwork):
            return torch.stack([network(observation) for network in networks])
        inputs = [
            _inputs(network, observation, action) for network in (networks[:1] if self._shares_inputs else networks)
        ]
        values = ensemble_mlp(
            inputs[0].expand(len(networks), -1, -1) if self._shares_inputs else torch.stack(inputs),
            [_tensors(_layers_of(network)) for network in networks],
            self._activation,
            None if self.norms is None else [_tensors(self.norms[index].children()) for index in asked],
        )
        return values if action is None else values.squeeze(-1)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freezes the parameters, so that a backward pass differentiates only the actions, at half the cost."""
        for parameter in self._trainable:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in self._trainable:
                parameter.requires_grad_(True)


def ensemble_mlp(
    x: Tensor,
    members: Sequence[Sequence[Tensor]],
    activation: Activation,
    norms: Sequence[Sequence[Tensor]] | None = None,
) -> Tensor:
    """Computes E MLPs (linear layers with activations between them) with one batched product a layer.

    The weights of the MLPs are concatenated at each call, at a small cost. So each member keeps its own parameters,
    with the names and in the order of a single network.

    The products of hidden layers are in the format of `network_arithmetic`; the rest is float32.

    Args:
        x: float32 `[E, N, n_in]`, the inputs of each member; may be expanded.
        members: For each member weight `[n_out, n_in]` and bias `[n_out]`, layer by layer.
        activation: `"tanh"` or `"relu"`.
        norms: For each member, gain and shift `[n_out]` of the layer norm between product and activation, by hidden
            layer (Ba et al. 2016, https://arxiv.org/abs/1607.06450, equation 4). None: no layer norm.

    Returns:
        float32 `[E, N, n_out]`.
    """
    layers = _side_by_side(members)
    of_norms = [] if norms is None else _side_by_side(norms)
    *hidden, (last_weight, last_bias) = layers
    dtype = hidden_dtype()
    for i, (weight, bias) in enumerate(hidden):
        x = torch.baddbmm(bias[:, None].to(dtype), x.to(dtype), weight.transpose(1, 2).to(dtype)).to(torch.float32)
        if of_norms:
            gain, shift = of_norms[i]
            x = torch.addcmul(shift[:, None], F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPSILON), gain[:, None])
        x = torch.tanh(x) if activation == "tanh" else torch.relu(x)
    return torch.baddbmm(last_bias[:, None], x, last_weight.transpose(1, 2))


def _side_by_side(members: Sequence[Sequence[Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Returns the two tensors of each layer, `[E, ...]`."""
    stacked = [torch.stack(same) for same in zip(*members, strict=True)]
    return list(zip(stacked[::2], stacked[1::2], strict=True))


def _seen(spaces: SubstepSpaces, spec: PolicySpec) -> Space[Any]:
    """Returns the space that networks see: with a frame stack, the space of stacks."""
    return stacked_space(spaces.observation, spec.frame_stack)


def _action_value_network(spaces: SubstepSpaces, spec: PolicySpec) -> nn.Module:
    if isinstance(spaces.action, Discrete):
        return build_network(_seen(spaces, spec), int(spaces.action.n), spec, output_gain=1.0)
    return _ActionInput(spaces, spec)


def _layers_of(network: nn.Module) -> nn.ModuleList:
    """Returns the linear layers of rollcast's own network, or those after another network's features."""
    own = network.network if isinstance(network, _ActionInput) else network
    assert isinstance(own, AutoNetwork)
    return own.layers


def _tensors(layers: Iterable[nn.Module]) -> list[Tensor]:
    """Returns weight and bias of each layer in turn."""
    # Not layer.parameters(), which takes as long as the product of a small layer.
    return [tensor for layer in layers for tensor in layer._parameters.values() if tensor is not None]


def _inputs(network: nn.Module, observation: Mapping[str, Tensor], action: Tensor | None) -> Tensor:
    """Returns the input of a network's linear layers, `[N, F]`."""
    if isinstance(network, _ActionInput):
        assert action is not None
        return network.inputs(observation, action)
    assert isinstance(network, AutoNetwork)
    return network.features(observation)


def _layer_norms(network: nn.Module, spec: PolicySpec) -> nn.ModuleList:
    """Makes a layer norm for each hidden layer of a critic."""
    hidden = _layers_of(network)[:-1] if isinstance(network, AutoNetwork | _ActionInput) else ()
    if not len(hidden):
        raise ConfigurationError(
            f"layer norm for critics without hidden layers (network {spec.network!r}, hidden sizes "
            f"{list(spec.hidden_sizes)}); expected hidden layers that rollcast makes: critics of Discrete actions, of "
            "images and of custom networks have none; set hidden sizes, put the norm into your network, or leave it "
            "out"
        )
    return nn.ModuleList(nn.LayerNorm(layer.out_features, eps=LAYER_NORM_EPSILON) for layer in hidden)


class _ActionInput(nn.Module):
    """A network that takes an observation and an action."""

    def __init__(self, spaces: SubstepSpaces, spec: PolicySpec) -> None:
        super().__init__()
        action = Box(-1.0, 1.0, (math.prod(spaces.action.shape or ()),), np.float32)
        self.features: nn.Module | None = None
        seen = _seen(spaces, spec)
        own = spec.network not in BUILT_IN_NETWORKS
        if own:
            # a custom network takes the environment's observations only, so the action is appended to its outputs
            self.features = build_network(seen, _N_OWN_FEATURES, spec)
            seen = Box(-np.inf, np.inf, (_N_OWN_FEATURES,), np.float32)
        joint = Dict({"observation": seen, "action": action})
        name = AUTO_NETWORK if own else spec.network
        network = build_network(joint, 1, dataclasses.replace(spec, network=name), output_gain=1.0)
        assert isinstance(network, AutoNetwork)
        self.network = network

    @property
    def learns_features(self) -> bool:
        """True if the input of its layers depends on parameters."""
        return self.features is not None or self.network.learns_features

    def inputs(self, observation: Mapping[str, Tensor], action: Tensor) -> Tensor:
        """Returns the input of its layers, `[N, F]`."""
        seen = observation if self.features is None else {"": self.features(observation)}
        joint = {f"observation/{path}" if path else "observation": leaf for path, leaf in seen.items()}
        return self.network.features({**joint, "action": action})
