"""Builds networks in torch: an MLP for vectors, an MLP with a torso for images, or a user's own network."""

import math
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from gymnasium import Space
from torch import Tensor, nn

from rollcast.actor.entry_points import load_entry_point
from rollcast.actor.policies.features import FeatureLayout, VectorLeaf, feature_layout, image_size
from rollcast.actor.policies.image_networks import ImpalaResnet, ImpalaShallow, NatureCnn, orthogonal
from rollcast.actor.policies.mlp_function import hidden_mlp, mlp
from rollcast.actor.policies.network_arithmetic import follow_arithmetic
from rollcast.actor.policies.network_size import (
    check_network_size,
    layer_shapes,
    n_recurrent_inputs,
)
from rollcast.actor.policies.observation_moments import normalized_leaves
from rollcast.actor.policies.torch_constants import constant
from rollcast.actor.policies.torch_recurrence import SequenceStarts, TorchRecurrence
from rollcast.services.errors import ConfigurationError, message_of
from rollcast.services.policies.policies import AUTO_NETWORK, BUILT_IN_NETWORKS, PolicySpec
from rollcast.services.spaces.spaces import describe_space, space_leaves

# All other networks use the Nature CNN.
_TORSOS: Final[Mapping[str, type[ImpalaResnet | ImpalaShallow]]] = {
    "impala_shallow": ImpalaShallow,
    "impala_resnet": ImpalaResnet,
}


def check_default_dtype() -> None:
    """Checks that torch makes float32 tensors by default, as networks and updates expect.

    Raises:
        ConfigurationError: If code in this process, such as an environment, has changed the default.
    """
    dtype = torch.get_default_dtype()
    if dtype is not torch.float32:
        raise ConfigurationError(
            f"torch's default dtype is {dtype} in this process; expected torch.float32, in which policies act and "
            "learn; look for torch.set_default_dtype in the environment or its imports, and give its tensors a dtype "
            "instead"
        )


def build_network(
    observation_space: Space[Any], n_outputs: int, spec: PolicySpec, *, output_gain: float = 0.01
) -> nn.Module:
    """Builds the network of a spec.

    The network's forward takes `Mapping[str, Tensor]`, `[N, ...]` for every leaf of the observation space in the
    space's dtype (float32 for a normalised leaf). It returns float32 `[N, n_outputs]`. With a recurrence, the network
    is a `RecurrentNetwork`.

    Args:
        observation_space: The observation space.
        n_outputs: The number of outputs for an observation.
        spec: The spec names a built-in network, or a factory, which is called as `factory(observation_space,
            n_outputs)`.
        output_gain: The scale of the initial weights of the last layer; 0.01 makes the first policy nearly uniform. Not
            used for a user's own network.

    Returns:
        The network.

    Raises:
        ConfigurationError: If the factory cannot be loaded, its network does not fit or should be recurrent, or torch's
            default dtype is not float32.
        InvalidSpaceError: If the observation space is not supported.
        LimitExceededError: If the weights are too large for a policy.
    """
    check_default_dtype()
    if spec.network in BUILT_IN_NETWORKS:
        kind = RecurrentNetwork if spec.state_size else AutoNetwork
        return kind(feature_layout(observation_space, spec.network), observation_space, n_outputs, spec, output_gain)
    if spec.state_size:
        raise ConfigurationError(
            f"recurrence {spec.recurrence!r} with the network {spec.network!r}; expected a built-in network, "
            f"because only these can be recurrent; choose network {AUTO_NETWORK!r}, or recurrence 'none'"
        )
    if ":" not in spec.network:
        raise ConfigurationError(
            f"network {spec.network!r} does not exist; expected one of {', '.join(BUILT_IN_NETWORKS)}, or "
            "package.module:factory; correct the name"
        )
    factory = load_entry_point(spec.network)
    try:
        network = factory(observation_space, n_outputs)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigurationError(
            f"network {spec.network!r} raised {type(error).__name__}: {message_of(error)} ({where.filename}, line "
            f"{where.lineno}, in {where.name}); expected a torch.nn.Module for "
            f"{describe_space(observation_space)} with {n_outputs} outputs; correct the factory"
        ) from error
    if not isinstance(network, nn.Module):
        raise ConfigurationError(
            f"network {spec.network!r} returned a {type(network).__name__}; expected a torch.nn.Module; return one"
        )
    _check_output(network, observation_space, n_outputs, spec)
    return follow_arithmetic(network)


class AutoNetwork(nn.Module):
    """The built-in network: a torso for each image, hidden layers if there is a vector, and an output layer.

    `numpy_acting` relies on the names of the parameters, `layers.<i>.weight` and `layers.<i>.bias`. The output layer is
    the last layer.
    """

    def __init__(
        self,
        layout: FeatureLayout,
        observation_space: Space[Any],
        n_outputs: int,
        spec: PolicySpec,
        output_gain: float,
    ) -> None:
        """Builds the layers.

        Args:
            layout: The layout of the observation space.
            observation_space: The observation space.
            n_outputs: The number of outputs for an observation.
            spec: The sizes and the activation of the hidden layers.
            output_gain: The scale of the initial weights of the output layer.

        Raises:
            LimitExceededError: If the weights are too large for a policy.
        """
        super().__init__()
        check_network_size(layout, observation_space, n_outputs, spec)
        leaves = space_leaves(observation_space)
        self._image_paths = tuple(layout.images)
        torso = _TORSOS.get(spec.network, NatureCnn)
        self.images = nn.ModuleList(
            torso(image_size(tuple(leaves[path].shape or ()), image_layout), image_layout)
            for path, image_layout in layout.images.items()
        )
        self._vectors = layout.vectors
        self._activation = spec.activation
        shapes = layer_shapes(layout, n_outputs, spec)
        gains = [math.sqrt(2.0)] * (len(shapes) - 1) + [output_gain]
        self.layers = nn.ModuleList(
            orthogonal(nn.Linear(n_in, n_out), gain) for (n_in, n_out), gain in zip(shapes, gains, strict=True)
        )

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Computes the outputs.

        Args:
            observation: `[N, ...]` for every leaf.

        Returns:
            float32 `[N, n_outputs]`.
        """
        return self.outputs_of(self.features(observation))

    def outputs_of(self, features: Tensor) -> Tensor:
        """Returns the outputs, `[N, n_outputs]`, for the inputs of the first layer, `[N, F]`."""
        return mlp(features, self._parameters_of(self.layers), self._activation)

    @property
    def learns_features(self) -> bool:
        """True if the inputs of the first layer depend on parameters, as with images."""
        return len(self.images) > 0

    def features(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Returns the inputs of the first layer, `[N, F]`, for observations `[N, ...]` for every leaf."""
        parts = [cnn(observation[path]) for path, cnn in zip(self._image_paths, self.images, strict=True)]
        parts += [_leaf_features(leaf, observation[leaf.path]) for leaf in self._vectors]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    @property
    def linear_layers(self) -> list[nn.Linear]:
        """The layers after the features, with the output layer last."""
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    @staticmethod
    def _parameters_of(layers: Iterable[nn.Module]) -> list[Tensor]:
        # Not layers.parameters(), which costs as much as the product of a small layer.
        return [p for layer in layers for p in layer._parameters.values() if p is not None]


class RecurrentNetwork(AutoNetwork):
    """The built-in network with a recurrent layer, an LSTM or a GRU, between the hidden layers and the output layer.

    `numpy_acting` relies on the names of the recurrent layer's parameters, `recurrence.weight_ih_l0` and so on.
    """

    def __init__(
        self,
        layout: FeatureLayout,
        observation_space: Space[Any],
        n_outputs: int,
        spec: PolicySpec,
        output_gain: float,
    ) -> None:
        """Builds the layers; see `AutoNetwork` for arguments and errors."""
        super().__init__(layout, observation_space, n_outputs, spec, output_gain)
        self.recurrence = TorchRecurrence(spec, n_recurrent_inputs(layout, spec))

    # A step takes and returns the state, too.
    def forward(self, observation: Mapping[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Computes a step.

        Args:
            observation: `[N, ...]` for every leaf.
            state: float32 `[N, S]`.

        Returns:
            The outputs, float32 `[N, n_outputs]`, and the next states, float32 `[N, S]`.
        """
        state = self.recurrence(self._encoded(observation), state)
        return self.layers[-1](self.recurrence.output_of(state)), state

    def unroll(
        self, observation: Mapping[str, Tensor], initial_state: Tensor, starts: SequenceStarts
    ) -> tuple[Tensor, Tensor]:
        """Computes T steps of B trajectories.

        Args:
            observation: `[T * B, ...]` for every leaf, row by row.
            initial_state: float32 `[B, S]`, without a gradient.
            starts: The rows whose state does not follow from the previous row.

        Returns:
            The outputs, float32 `[T * B, n_outputs]`, and the states after each row, float32 `[T, B, S]`.
        """
        encoded = self._encoded(observation).view(*starts.begins.shape, -1)
        states = self.recurrence.unroll(encoded, initial_state, starts)
        return self.layers[-1](self.recurrence.output_of(states).flatten(0, 1)), states

    def _encoded(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Returns the inputs of the recurrent layer: the features, through the hidden layers."""
        x, hidden = self.features(observation), self.layers[:-1]
        return hidden_mlp(x, self._parameters_of(hidden), self._activation)


def _leaf_features(leaf: VectorLeaf, values: Tensor) -> Tensor:
    """Computes `features.VectorFeatures` in torch, for one leaf: `[N, ...]` -> float32 `[N, leaf.size]`."""
    flat = values if values.ndim == 2 else values.reshape(len(values), -1)
    if leaf.one_hot_offsets is not None:
        offsets = constant(tuple(leaf.one_hot_offsets.tolist()), flat.device)
        one_hot = torch.zeros(len(flat), leaf.size, device=flat.device)
        return one_hot.scatter_(1, flat.to(torch.int64) + offsets, 1.0)
    flat = flat.to(torch.float32)
    return flat if leaf.scale == 1.0 else flat * leaf.scale


def _check_output(network: nn.Module, observation_space: Space[Any], n_outputs: int, spec: PolicySpec) -> None:
    """Runs a user's network once, to report mistakes at construction instead of in the first rollout."""
    n, name = 2, spec.network
    normalized = normalized_leaves(observation_space) if spec.normalize_observations else {}
    observation = {
        path: torch.zeros(
            (n, *(leaf.shape or ())),
            dtype=torch.float32 if path in normalized else getattr(torch, str(leaf.dtype), torch.float32),
        )
        for path, leaf in space_leaves(observation_space).items()
    }
    was_training = network.training
    network.eval()
    with torch.no_grad():
        try:
            output = network(observation)
        except Exception as error:
            raise ConfigurationError(
                f"network {name!r} raised {type(error).__name__}: {error}; expected its forward to take a dict from "
                f"path to Tensor [N, ...] with the paths {list(observation)}; correct its forward"
            ) from error
    network.train(was_training)
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if shape != (n, n_outputs):
        raise ConfigurationError(
            f"network {name!r} gave {shape} for {n} observations; expected a Tensor of shape {(n, n_outputs)}; "
            "make the network return n_outputs numbers for each observation"
        )
