"""Acts with an MLP on vectors, in numpy: faster than torch for small networks, and without importing torch."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.base import Policy, RecurrentState
from rollcast.actor.policies.distributions import Parameters
from rollcast.actor.policies.features import FeatureLayout, VectorFeatures, feature_layout
from rollcast.actor.policies.frame_stacks import stacked_space
from rollcast.actor.policies.network_size import check_network_size, layer_shapes, n_recurrent_inputs
from rollcast.actor.policies.observation_moments import (
    NormalizedFeatures,
    check_moments,
    moments_layout,
    normalized_leaves,
)
from rollcast.actor.policies.recurrence import NumpyRecurrence, recurrent_shapes
from rollcast.actor.policies.state_check import StateLayout, check_policy_state
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation

_FLOAT32 = np.dtype(np.float32)


class NumpyMlpPolicy(Policy):
    """A policy with a built-in network and no images, computed in numpy from the arrays of a `TorchPolicy`."""

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, seed: int, slot: int = 0) -> None:
        """Prepares the networks.

        Args:
            spaces: The environment's spaces by substep key; no leaf is an image.
            spec: Hidden sizes, activation, head and recurrence.
            seed: Seeds the sampling of actions.
            slot: The actor's slot, at least 0; selects the actor's exploration rate.

        Raises:
            ConfigurationError: If a leaf is an image.
            InvalidSpaceError: If a space is not supported at all or with this head.
            LimitExceededError: If the weights are too large for a policy.
        """
        super().__init__(
            spaces, seed=seed, head=spec.head, slot=slot, state_size=spec.state_size, frame_stack=spec.frame_stack
        )
        self._networks: dict[str, _Mlp] = {}
        self._clip = spec.observation_clip
        for key, substep in spaces.items():
            seen = stacked_space(substep.observation, spec.frame_stack)
            layout = feature_layout(seen, spec.network)
            if layout.images:
                raise ConfigurationError(
                    f"the observation of substep {key!r} has images at {list(layout.images)}; expected vectors only; "
                    "use make_policy, which chooses the implementation"
                )
            distribution = self._distributions[key]
            check_network_size(layout, seen, distribution.n_outputs, spec)
            self._networks[key] = _Mlp(
                key,
                layout,
                distribution.n_outputs,
                spec,
                has_log_std=distribution.n_outputs != distribution.n_parameters,
                leaves=normalized_leaves(substep.observation) if spec.normalize_observations else {},
            )

    def parameters_of(self, observation: Observation, substep_key: str, state: RecurrentState | None) -> Parameters:
        """See `Policy.parameters_of`."""
        parameters = self._networks[substep_key](observation, state)
        if (mask := self._masks[substep_key]) is not None:
            mask.forbid(parameters, observation)
        return parameters

    def _load(self, state: PolicyState) -> None:
        expected = {name: array for mlp in self._networks.values() for name, array in mlp.layout.items()}
        check_policy_state(expected, state)
        check_moments(state)
        for mlp in self._networks.values():
            mlp.load(state, clip=self._clip)


class _Mlp:
    """The forward pass of one substep's network, with its weights and a buffer for each layer."""

    def __init__(
        self,
        key: str,
        layout: FeatureLayout,
        n_outputs: int,
        spec: PolicySpec,
        *,
        has_log_std: bool,
        leaves: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._features: VectorFeatures | NormalizedFeatures = VectorFeatures(layout)
        if leaves:
            self._features = NormalizedFeatures(key, leaves, layout, spec.frame_stack)
        self._moments = moments_layout(key, leaves)
        self._layer_shapes = layer_shapes(layout, n_outputs, spec)
        self._is_tanh = spec.activation == "tanh"
        # The names of the parameters in TorchPolicy, AutoNetwork and RecurrentNetwork.
        self._weights = [f"networks.{key}.layers.{i}.weight" for i in range(len(self._layer_shapes))]
        self._biases = [f"networks.{key}.layers.{i}.bias" for i in range(len(self._layer_shapes))]
        self._recurrence: NumpyRecurrence | None = None
        self._recurrent_shapes: dict[str, tuple[int, ...]] = {}
        self._recurrent_prefix = f"networks.{key}.recurrence."
        if spec.state_size:
            n_inputs = n_recurrent_inputs(layout, spec)
            self._recurrence = NumpyRecurrence(spec, n_inputs)
            self._recurrent_shapes = recurrent_shapes(spec, n_inputs)
        self._log_std = f"log_std.{key}" if has_log_std else None
        self._layers: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        self._log_std_values: NDArray[np.float32] | None = None
        self._buffers: list[NDArray[np.float32]] = []
        self._n = -1

    @property
    def layout(self) -> StateLayout:
        """Shapes and dtypes of the network's arrays, by name."""
        shapes: dict[str, tuple[int, ...]] = {
            name: (n_out, n_in) for name, (n_in, n_out) in zip(self._weights, self._layer_shapes, strict=True)
        }
        shapes |= {name: (n_out,) for name, (_, n_out) in zip(self._biases, self._layer_shapes, strict=True)}
        shapes |= {self._recurrent_prefix + name: shape for name, shape in self._recurrent_shapes.items()}
        if self._log_std is not None:
            shapes[self._log_std] = (self._layer_shapes[-1][1],)
        return {name: (shape, _FLOAT32) for name, shape in shapes.items()} | dict(self._moments)

    def load(self, state: PolicyState, *, clip: float) -> None:
        """Copies the network's arrays from a checked state."""
        if isinstance(self._features, NormalizedFeatures):
            self._features.load(state, clip=clip)
        self._layers = [
            # Transposed once here, so that the product reads its second factor row by row.
            (np.array(state[weight].T, dtype=np.float32, order="C"), np.array(state[bias], dtype=np.float32))
            for weight, bias in zip(self._weights, self._biases, strict=True)
        ]
        if self._recurrence is not None:
            self._recurrence.load({name: state[self._recurrent_prefix + name] for name in self._recurrent_shapes})
        if self._log_std is not None:
            self._log_std_values = np.array(state[self._log_std], dtype=np.float32)

    def __call__(self, observation: Observation, state: RecurrentState | None) -> Parameters:
        """Computes parameters, float32 `[B, P]`, in a buffer that the next call overwrites; updates `state`."""
        x = self._features(observation)
        if len(x) != self._n:
            self._n = len(x)
            self._buffers = [np.empty((self._n, n_out), dtype=np.float32) for _, n_out in self._layer_shapes]
        last = len(self._layers) - 1
        for i, ((weight, bias), out) in enumerate(zip(self._layers, self._buffers, strict=True)):
            if i == last and self._recurrence is not None and state is not None:
                x = self._recurrence.step(x, state)
            np.dot(x, weight, out=out)
            np.add(out, bias, out=out)
            if i != last:
                if self._is_tanh:
                    np.tanh(out, out=out)
                else:
                    np.maximum(out, 0.0, out=out)
            x = out
        if self._log_std_values is None:
            return x
        return np.concatenate([x, np.broadcast_to(self._log_std_values, x.shape)], axis=1)
