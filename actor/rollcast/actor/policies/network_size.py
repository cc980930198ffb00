"""Computes and limits the size of a built-in network before its allocation."""

import itertools
import math
from typing import Any, Final, NamedTuple

from gymnasium import Space

from rollcast.actor.policies.features import FeatureLayout, image_size
from rollcast.actor.policies.recurrence import recurrent_shapes
from rollcast.services.errors import LimitExceededError
from rollcast.services.limits.limits import MAX_POLICY_BYTES
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import describe_space, space_leaves


class CnnShape(NamedTuple):
    """The shape of a plain CNN.

    Attributes:
        convolutions: The kernel size, stride and channels of each convolution.
        n_features: The number of outputs of the fully connected layer after the convolutions.
    """

    convolutions: tuple[tuple[int, int, int], ...]
    n_features: int


NATURE_CNN: Final = CnnShape(((8, 4, 32), (4, 2, 64), (3, 1, 64)), 512)
IMPALA_SHALLOW: Final = CnnShape(((8, 4, 16), (4, 2, 32)), 256)
# Number of features that the IMPALA ResNet makes of an image, and the channels of its stages.
N_RESNET_FEATURES: Final = 256
RESNET_CHANNELS: Final = (16, 32, 32)

_FLOAT32_BYTES: Final = 4


def layer_shapes(layout: FeatureLayout, n_outputs: int, spec: PolicySpec) -> tuple[tuple[int, int], ...]:
    """Returns the numbers of inputs and outputs of each layer after the images: hidden layers, then the output layer.

    Args:
        layout: The inputs of the network.
        n_outputs: The number of outputs for an observation.
        spec: The hidden sizes; a network of images alone has no hidden layers. With a recurrence, the output of the
            recurrent layer is the input of the output layer.
    """
    sizes = _sizes_before_output(layout, spec)
    return (*itertools.pairwise(sizes), (spec.recurrent_size if spec.state_size else sizes[-1], n_outputs))


def n_recurrent_inputs(layout: FeatureLayout, spec: PolicySpec) -> int:
    """Returns the number of inputs of a recurrence: the outputs of the last hidden layer, or all features."""
    return _sizes_before_output(layout, spec)[-1]


def _sizes_before_output(layout: FeatureLayout, spec: PolicySpec) -> tuple[int, ...]:
    hidden_sizes = spec.hidden_sizes if layout.vectors else ()
    n_of_image = N_RESNET_FEATURES if spec.network == "impala_resnet" else _cnn_of(spec.network).n_features
    return (len(layout.images) * n_of_image + layout.n_features, *hidden_sizes)


def side_after_convolutions(side: int, shape: CnnShape) -> int:
    """Returns the side of an image after the convolutions of a CNN."""
    for kernel, stride, _ in shape.convolutions:
        side = (side - kernel) // stride + 1
    return side


def side_after_stages(side: int) -> int:
    """Returns the side of an image after the IMPALA ResNet's stages. Each stage halves the side."""
    for _ in RESNET_CHANNELS:
        side = (side + 1) // 2
    return side


def check_network_size(layout: FeatureLayout, observation_space: Space[Any], n_outputs: int, spec: PolicySpec) -> None:
    """Checks that a network's weights do not exceed the limit for policies.

    Args:
        layout: The inputs of the network.
        observation_space: The observation space.
        n_outputs: Number of outputs for an observation.
        spec: The hidden sizes, and the recurrence.

    Raises:
        LimitExceededError: If the weights exceed `MAX_POLICY_BYTES`.
    """
    shapes = layer_shapes(layout, n_outputs, spec)
    n_weights = sum((n_in + 1) * n_out for n_in, n_out in shapes)
    if spec.state_size:
        n_weights += sum(map(math.prod, recurrent_shapes(spec, n_recurrent_inputs(layout, spec)).values()))
    leaves = space_leaves(observation_space)
    sizes = (image_size(tuple(leaves[path].shape or ()), image) for path, image in layout.images.items())
    if spec.network == "impala_resnet":
        n_weights += sum(_resnet_weights(*size) for size in sizes)
    else:
        n_weights += sum(_cnn_weights(*size, _cnn_of(spec.network)) for size in sizes)
    n_bytes = n_weights * _FLOAT32_BYTES
    if n_bytes > MAX_POLICY_BYTES:
        raise LimitExceededError(
            f"the network for observations of {describe_space(observation_space)} has layers of "
            f"{_shown((*_sizes_before_output(layout, spec), n_outputs))}{_recurrence(spec)} and "
            f"{n_bytes} bytes of weights; expected at most {MAX_POLICY_BYTES}, the largest policy that can be sent; "
            "reduce the spaces (each value of a Discrete is an input or an output), or the hidden sizes",
            limit="max_policy_bytes",
        )


def _cnn_of(network: str) -> CnnShape:
    return IMPALA_SHALLOW if network == "impala_shallow" else NATURE_CNN


def _cnn_weights(height: int, width: int, channels: int, shape: CnnShape) -> int:
    n_weights = 0
    for kernel, _, n_out in shape.convolutions:
        n_weights += (kernel * kernel * channels + 1) * n_out
        channels = n_out
    n_pixels = side_after_convolutions(height, shape) * side_after_convolutions(width, shape)
    return n_weights + (channels * n_pixels + 1) * shape.n_features


def _resnet_weights(height: int, width: int, channels: int) -> int:
    n_weights = 0
    for n_out in RESNET_CHANNELS:
        n_weights += (9 * channels + 1) * n_out + 4 * (9 * n_out + 1) * n_out
        channels = n_out
    n_pixels = side_after_stages(height) * side_after_stages(width)
    return n_weights + (channels * n_pixels + 1) * N_RESNET_FEATURES


def _recurrence(spec: PolicySpec) -> str:
    return f", a recurrent state ({spec.recurrence}) of {spec.recurrent_size}" if spec.state_size else ""


def _shown(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes)) if len(sizes) <= 8 else f"{', '.join(map(str, sizes[:8]))}, ..."
