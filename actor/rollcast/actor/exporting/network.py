"""Adds the networks of a policy to an ONNX graph, from the arrays of its state."""

import io
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from gymnasium import Space
from numpy.typing import NDArray

from rollcast.actor.exporting.graph import OPSET, GraphBuilder
from rollcast.actor.policies.features import FeatureLayout, image_size
from rollcast.actor.policies.network_size import IMPALA_SHALLOW, NATURE_CNN, RESNET_CHANNELS, CnnShape
from rollcast.actor.policies.observation_moments import normalized_leaves
from rollcast.services.errors import ConfigurationError, message_of
from rollcast.services.policies.policies import PolicySpec, SavedPolicy
from rollcast.services.spaces.spaces import EnvironmentSpaces, space_leaves


class NetworkNodes:
    """The built-in network of one substep, as nodes of a graph. `networks.AutoNetwork` is the version in torch.

    Args:
        graph: The graph.
        saved: The policy.
        substep_key: The substep.
        layout: The layout of the policy's observations, as stacks of frames.
        leaves: The leaves of these observations by path.
    """

    def __init__(
        self,
        graph: GraphBuilder,
        saved: SavedPolicy,
        substep_key: str,
        layout: FeatureLayout,
        leaves: Mapping[str, Space[Any]],
    ) -> None:
        self._graph = graph
        self._spec: PolicySpec = saved.spec
        prefix = f"networks.{substep_key}."
        self._arrays = {
            name.removeprefix(prefix): array for name, array in saved.state.items() if name.startswith(prefix)
        }
        self._layout = layout
        self._leaves = leaves

    def outputs(self, inputs: Mapping[str, str], state: str | None) -> tuple[str, str | None]:
        """Adds the network.

        Args:
            inputs: float32 `[N, F]` by path. For an image: the pixels from 0 to 1, channels first. For another leaf:
                the features.
            state: float32 `[N, S]`; None: the policy is not recurrent.

        Returns:
            The outputs, float32 `[N, n]`, and the states after them, `[N, S]`.
        """
        parts = [self._image(i, inputs[path], path) for i, path in enumerate(self._layout.images)]
        x = self._graph.concat([*parts, *(inputs[leaf.path] for leaf in self._layout.vectors)])
        last = sum(name.startswith("layers.") for name in self._arrays) // 2 - 1
        for i in range(last):
            x = self._graph.add("Tanh" if self._spec.activation == "tanh" else "Relu", self._linear(x, f"layers.{i}"))
        if state is not None:
            x, state = self._recurrence(x, state)
        return self._linear(x, f"layers.{last}"), state

    def _constant(self, name: str) -> str:
        return self._graph.constant(self._array(name))

    def _array(self, name: str) -> NDArray[np.float32]:
        return self._arrays[name].astype(np.float32, copy=False)

    def _linear(self, x: str, name: str) -> str:
        return self._graph.add("Gemm", x, self._constant(f"{name}.weight"), self._constant(f"{name}.bias"), transB=1)

    def _convolution(self, x: str, name: str, *, stride: int = 1, padding: int = 0) -> str:
        weight, bias = self._constant(f"{name}.weight"), self._constant(f"{name}.bias")
        return self._graph.add("Conv", x, weight, bias, strides=[stride] * 2, pads=[padding] * 4)

    def _image(self, index: int, pixels: str, path: str) -> str:
        height, width, channels = image_size(tuple(self._leaves[path].shape or ()), self._layout.images[path])
        x, name = self._graph.reshape(pixels, (channels, height, width)), f"images.{index}"
        if self._spec.network == "impala_resnet":
            x = self._resnet_stages(x, name)
        else:
            shape: CnnShape = IMPALA_SHALLOW if self._spec.network == "impala_shallow" else NATURE_CNN
            for i, (_, stride, _) in enumerate(shape.convolutions):
                x = self._graph.add("Relu", self._convolution(x, f"{name}.convolutions.{2 * i}", stride=stride))
        return self._graph.add("Relu", self._linear(self._graph.add("Flatten", x), f"{name}.full"))

    def _resnet_stages(self, x: str, name: str) -> str:
        for stage in range(len(RESNET_CHANNELS)):
            first = 4 * stage
            x = self._convolution(x, f"{name}.stages.{first}", padding=1)
            x = self._graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
            for block in (first + 2, first + 3):
                inner = self._graph.add("Relu", x)
                inner = self._graph.add("Relu", self._convolution(inner, f"{name}.stages.{block}.first", padding=1))
                x = self._graph.add("Add", x, self._convolution(inner, f"{name}.stages.{block}.second", padding=1))
        return self._graph.add("Relu", x)

    def _recurrence(self, x: str, state: str) -> tuple[str, str]:
        """Returns the output and the state after a step; see `recurrence` for the equations."""
        graph, size = self._graph, self._spec.recurrent_size
        hidden, *cells = graph.split(state, [size] * (self._spec.state_size // size))
        of_input, of_state = (
            graph.add(
                "Gemm",
                given,
                self._constant(f"recurrence.weight_{kind}_l0"),
                self._constant(f"recurrence.bias_{kind}_l0"),
                transB=1,
            )
            for given, kind in ((x, "ih"), (hidden, "hh"))
        )
        if cells:
            i, f, g, o = graph.split(graph.add("Add", of_input, of_state), [size] * 4)
            kept = graph.add("Mul", graph.add("Sigmoid", f), cells[0])
            cell = graph.add("Add", kept, graph.add("Mul", graph.add("Sigmoid", i), graph.add("Tanh", g)))
            hidden = graph.add("Mul", graph.add("Sigmoid", o), graph.add("Tanh", cell))
            return hidden, graph.concat([hidden, cell])
        (r, z, new), (r_of_state, z_of_state, new_of_state) = (
            graph.split(gates, [size] * 3) for gates in (of_input, of_state)
        )
        reset = graph.add("Sigmoid", graph.add("Add", r, r_of_state))
        update = graph.add("Sigmoid", graph.add("Add", z, z_of_state))
        new = graph.add("Tanh", graph.add("Add", new, graph.add("Mul", reset, new_of_state)))
        hidden = graph.add("Add", new, graph.add("Mul", update, graph.add("Sub", hidden, new)))
        return hidden, hidden


def own_network(saved: SavedPolicy, spaces: EnvironmentSpaces, substep_key: str, seen: Space[Any]) -> onnx.ModelProto:
    """Returns a user's own network as a model with an input `leaf_<i>` for each leaf of the observations.

    This function uses torch's older exporter, which needs no package besides `onnx`.

    Args:
        saved: The policy. This function imports the policy's network.
        spaces: The policy's spaces.
        substep_key: The substep.
        seen: The space of the network's inputs: stacks of frames.

    Raises:
        ConfigurationError: The network cannot be exported.
    """
    import torch

    from rollcast.actor.policies.trainable import TorchPolicy

    class _WithLeaves(torch.nn.Module):
        """The network, with a tensor for each leaf instead of a mapping."""

        def __init__(self, network: torch.nn.Module, paths: list[str]) -> None:
            super().__init__()
            self.network, self._paths = network, paths

        def forward(self, *leaves: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.network(dict(zip(self._paths, leaves, strict=True)))
            return outputs

    policy = TorchPolicy(spaces, saved.spec)
    policy.load_state_arrays(saved.state)
    leaves = space_leaves(seen)
    normalized = normalized_leaves(seen) if saved.spec.normalize_observations else {}
    given = tuple(
        torch.zeros(
            (2, *(leaf.shape or ())), dtype=torch.float32 if path in normalized else getattr(torch, str(leaf.dtype))
        )
        for path, leaf in leaves.items()
    )
    names = [f"leaf_{i}" for i in range(len(leaves))]
    file = io.BytesIO()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the exporter's own: it is deprecated, and looks closely at constants
            torch.onnx.export(
                _WithLeaves(policy.networks[substep_key], list(leaves)).eval(),
                given,
                file,  # type: ignore[arg-type]  # the older exporter takes files, too
                dynamo=False,
                opset_version=OPSET,
                input_names=names,
                output_names=["outputs"],
                dynamic_axes={name: {0: "N"} for name in (*names, "outputs")},
            )
        return onnx.load_model_from_string(file.getvalue())
    except Exception as error:
        raise ConfigurationError(
            f"the network {saved.spec.network!r} cannot be exported to ONNX: {type(error).__name__}: "
            f"{message_of(error)}; expected a network of operations that torch.onnx supports; change its forward, or "
            "serve the policy instead: rollcast serve-policy"
        ) from error
