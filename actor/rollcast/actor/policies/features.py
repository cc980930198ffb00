"""Turns observations into a network's inputs: images, and all other leaves as one vector `[N, F]`.

An action mask is not an input; see `action_masks`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray

from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.services.errors import ConfigurationError, InvalidSpaceError
from rollcast.services.policies.policies import AUTO_NETWORK, IMAGE_NETWORKS
from rollcast.services.spaces.spaces import Observation, describe_space, space_leaves

ImageLayout = Literal["channel_last", "channel_first"]

# The smallest side of an image: the Nature CNN's three convolutions reduce 36 pixels to one.
MIN_IMAGE_SIDE = 36


def image_layout(leaf: Space[Any]) -> ImageLayout | None:
    """Returns the position of an image's channels; None if the leaf is not an image.

    An image is a uint8 Box `[H, W, C]` or `[C, H, W]` with H and W of at least 36. If a shape fits both, the smaller of
    the first and the last axis holds the channels. `[K, H, W, C]` and `[K, C, H, W]` are stacks of K images.

    Args:
        leaf: A leaf of an observation space.
    """
    if not isinstance(leaf, Box) or leaf.dtype != np.uint8 or len(leaf.shape) not in (3, 4):
        return None
    first, middle, last = leaf.shape[-3:]
    if middle < MIN_IMAGE_SIDE or max(first, last) < MIN_IMAGE_SIDE:
        return None
    return "channel_last" if last <= first else "channel_first"


def image_size(shape: tuple[int, ...], layout: ImageLayout) -> tuple[int, int, int]:
    """Returns height, width and channels of an image. A stack of K images has K times the channels of one image.

    Args:
        shape: Shape of the leaf.
        layout: Position of the channels, from `image_layout`.
    """
    *stack, first, middle, last = shape
    height, width, channels = (first, middle, last) if layout == "channel_last" else (middle, last, first)
    return height, width, channels * math.prod(stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorLeaf:
    """A leaf that is part of the vector.

    Attributes:
        path: The leaf's path in the observation space.
        space: The leaf's space.
        offset: The index of the leaf's first feature in the vector.
        size: The number of the leaf's features.
        scale: The factor of the leaf's values.
        one_hot_offsets: For Discrete and MultiDiscrete, `[K]`: an element plus its offset is the column with a 1.
            None for all other spaces: the values are the features.
    """

    path: str
    space: Space[Any]
    offset: int
    size: int
    scale: float = 1.0
    one_hot_offsets: NDArray[np.int64] | None = None

    @property
    def is_plain(self) -> bool:
        """True if the features are the unchanged values: float32, unscaled."""
        return self.one_hot_offsets is None and self.scale == 1.0 and self.space.dtype == np.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLayout:
    """The leaves of an observation space as inputs of a network.

    Attributes:
        images: The layout of each image, by path, in the space's order.
        vectors: All leaves except images and the action mask, in the space's order.
        n_features: F, the length of the vector.
    """

    images: dict[str, ImageLayout]
    vectors: tuple[VectorLeaf, ...]
    n_features: int


def feature_layout(observation_space: Space[Any], network: str = AUTO_NETWORK) -> FeatureLayout:
    """Returns the inputs that a network gets from an observation space, without the action mask.

    Args:
        observation_space: Box, Discrete, MultiBinary, MultiDiscrete, or Dict and Tuple of these.
        network: The network's name; for `"mlp"`, images are part of the vector, too.

    Raises:
        InvalidSpaceError: If the space has a leaf of another kind.
        ConfigurationError: If the space has no image, and the network is for images.
    """
    images: dict[str, ImageLayout] = {}
    vectors: list[VectorLeaf] = []
    offset = 0
    for path, leaf in space_leaves(observation_space).items():
        # The mask is at the top, or deeper if the observation is one of several inputs, as for recurrent critics.
        if path.rpartition("/")[2] == ACTION_MASK:
            continue
        if network != "mlp" and (layout := image_layout(leaf)) is not None:
            images[path] = layout
        else:
            vectors.append(_vector_leaf(path, leaf, offset))
            offset += vectors[-1].size
    if network in IMAGE_NETWORKS and not images:
        raise ConfigurationError(
            f"network {network!r} for observations of {describe_space(observation_space)}; expected an image among "
            f"the observations, a uint8 Box [H, W, C] or [C, H, W] of at least {MIN_IMAGE_SIDE} by {MIN_IMAGE_SIDE} "
            f"pixels; choose network {AUTO_NETWORK!r}, or stack frames [H, W] with frame_stack"
        )
    return FeatureLayout(images=images, vectors=tuple(vectors), n_features=offset)


def _vector_leaf(path: str, leaf: Space[Any], offset: int) -> VectorLeaf:
    if isinstance(leaf, Discrete):
        one_hot_offsets = -np.array([leaf.start], dtype=np.int64)  # the smallest start wraps around, and back in a sum
        return VectorLeaf(path=path, space=leaf, offset=offset, size=int(leaf.n), one_hot_offsets=one_hot_offsets)
    if isinstance(leaf, MultiDiscrete):
        sizes = leaf.nvec.ravel().astype(np.int64)
        one_hot_offsets = np.cumsum(sizes) - sizes - leaf.start.ravel().astype(np.int64)
        return VectorLeaf(path=path, space=leaf, offset=offset, size=int(sizes.sum()), one_hot_offsets=one_hot_offsets)
    if isinstance(leaf, MultiBinary | Box):
        # Bytes are pixels or tiles, 0 to 255; the range of other integers is unknown.
        scale = 1.0 / 255.0 if leaf.dtype == np.uint8 else 1.0
        return VectorLeaf(path=path, space=leaf, offset=offset, size=math.prod(leaf.shape), scale=scale)
    raise InvalidSpaceError(
        f"the leaf {path!r} of the observation space is {leaf}; expected Box, Discrete, MultiBinary or MultiDiscrete; "
        "wrap the environment so that the leaf is one of these"
    )


class VectorFeatures:
    """Converts observations without images to vectors `[N, F]`, in numpy.

    Not thread-safe, because each converter owns a buffer.
    """

    def __init__(self, layout: FeatureLayout) -> None:
        """Prepares the buffer.

        Args:
            layout: The layout of the observation space.
        """
        self._leaves = layout.vectors
        self._n_features = layout.n_features
        self._buffer = np.empty((0, layout.n_features), dtype=np.float32)
        self._rows = np.empty((0, 1), dtype=np.intp)
        self._single = self._leaves[0].path if len(self._leaves) == 1 and self._leaves[0].is_plain else None
        self._means: Mapping[str, NDArray[Any]] = {}

    def subtract(self, means: Mapping[str, NDArray[Any]]) -> None:
        """Sets the means to subtract from leaves of floats before the conversion to float32.

        Args:
            means: `[size]` for each leaf by path, in the dtype of the subtraction. They replace earlier means.
        """
        self._means = means

    def __call__(self, observation: Observation) -> NDArray[np.float32]:
        """Converts a batch of observations to vectors.

        Args:
            observation: `[N, ...]` for every leaf.

        Returns:
            float32 `[N, F]`: the reshaped observation, if the observation is one float32 leaf without a mean.
            Otherwise a buffer that the next call overwrites.
        """
        if self._single is not None and not self._means:
            single = observation[self._single]
            plain: NDArray[np.float32] = single if single.ndim == 2 else single.reshape(len(single), -1)  # type: ignore[assignment]
            return plain
        n = len(observation[self._leaves[0].path])
        if len(self._buffer) != n:
            self._buffer = np.empty((n, self._n_features), dtype=np.float32)
            self._rows = np.arange(n)[:, None]
        for leaf in self._leaves:
            columns = self._buffer[:, leaf.offset : leaf.offset + leaf.size]
            values: NDArray[Any] = observation[leaf.path].reshape(n, -1)
            if leaf.one_hot_offsets is not None:
                columns[...] = 0.0
                columns[self._rows, values + leaf.one_hot_offsets] = 1.0
            elif leaf.scale != 1.0:
                np.multiply(values, leaf.scale, out=columns, casting="unsafe")
            elif leaf.path in self._means:
                np.subtract(values, self._means[leaf.path], out=columns)
            else:
                columns[...] = values
        return self._buffer
