"""Normalises observations by a policy's running mean and variance, in numpy; see also `torch_observation_moments`.

Every Box of floats among the leaves becomes

    s = float32(max(1 / sqrt(variance + 1e-8), 2^-126))
    y = clip(float32(x - mean) * s, -observation_clip, observation_clip)

with a mean and a variance for each number. For a leaf of float64, x - mean is computed in float64, because float32
loses small differences of large numbers. For any other leaf, x - mean is computed in float32, from float32(x) and
float32(mean). The moments, which are the running mean and variance and the number of observations, are arrays of a
policy: `normalization.<substep>.mean`, `.variance` (float64 `[F]`) and `.count` (int64 `[]`). F counts the numbers of
all these leaves, in the order of the space. All operations are correctly rounded by IEEE 754, in this order, so all
implementations give bit-identical results. All other leaves, such as images and Discrete spaces, are unchanged.
"""

import math
from collections.abc import Container, Mapping
from typing import Any, Final

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from numpy.typing import NDArray

from rollcast.actor.policies.features import FeatureLayout, VectorFeatures
from rollcast.actor.policies.state_check import StateLayout
from rollcast.services.errors import InvalidTensorError
from rollcast.services.policies.policies import PolicyState
from rollcast.services.spaces.spaces import Observation, space_leaves

# The prefix of the arrays' names in a policy's state.
NORMALIZATION: Final = "normalization"

# Added to the variance, to avoid a division by 0 for a constant number; the value of gymnasium and SB3.
VARIANCE_EPSILON: Final = 1e-8
# The smallest factor, float32's smallest normal number: processors may treat smaller numbers as 0.
_LEAST_SCALE: Final = float(np.finfo(np.float32).tiny)
_FLOAT32: Final = np.dtype(np.float32)
# Halfway to the number that would follow float32's largest one: float64 up to here is rounded to a float32.
_MOST_MEAN: Final = float(np.nextafter(2.0**128 - 2.0**103, 0.0))


def normalized_leaves(observation_space: Space[Any]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the normalised leaves, Boxes of floats, by path in the order of the space."""
    return {
        path: leaf.shape
        for path, leaf in space_leaves(observation_space).items()
        if isinstance(leaf, Box) and np.dtype(leaf.dtype).kind == "f"
    }


def moments_layout(substep_key: str, leaves: Mapping[str, tuple[int, ...]]) -> StateLayout:
    """Returns the shapes and dtypes of a substep's arrays, by name; empty if no leaf is normalised.

    Args:
        substep_key: The substep.
        leaves: The substep's leaves, as `normalized_leaves` returns them.
    """
    if not leaves:
        return {}
    n_numbers = sum(math.prod(shape) for shape in leaves.values())
    prefix, float64 = f"{NORMALIZATION}.{substep_key}", np.dtype(np.float64)
    return {
        f"{prefix}.mean": ((n_numbers,), float64),
        f"{prefix}.variance": ((n_numbers,), float64),
        f"{prefix}.count": ((), np.dtype(np.int64)),
    }


def check_moments(state: PolicyState) -> None:
    """Checks the values of a policy's running means and variances. Check names, shapes and dtypes before.

    Raises:
        InvalidTensorError: If a mean is not finite as float32, a variance is not finite, or a variance or a count is
            below 0.
    """
    for name, array in state.items():
        if not name.startswith(f"{NORMALIZATION}."):
            continue
        values, is_mean = array.astype(np.float64), name.endswith(".mean")
        least, most = (-_MOST_MEAN, _MOST_MEAN) if is_mean else (0.0, math.inf)
        wrong = ~(np.isfinite(values) & (values >= least) & (values <= most))
        if wrong.any():
            expected = "finite numbers in float32's range" if is_mean else "finite numbers of at least 0"
            raise InvalidTensorError(
                f"the policy's {name!r} holds {array[wrong][0]}; expected {expected}; the policy was damaged; use an "
                "earlier policy"
            )


def scale_of(variance: NDArray[np.generic]) -> NDArray[np.float32]:
    """Returns the factor for centred numbers: 1 / sqrt(variance + 1e-8).

    Args:
        variance: float64 `[F]`, at least 0.

    Returns:
        float32 `[F]`.
    """
    scale = np.maximum(1.0 / np.sqrt(variance.astype(np.float64) + VARIANCE_EPSILON), _LEAST_SCALE)
    return scale.astype(np.float32)


class NormalizedFeatures:
    """Converts observations with normalised leaves to vectors, like `features.VectorFeatures`.

    Not thread-safe.
    """

    def __init__(self, substep_key: str, leaves: Container[str], layout: FeatureLayout, frame_stack: int = 1) -> None:
        """Prepares the converter.

        Args:
            substep_key: The substep of the observations.
            leaves: The paths of the normalised leaves, from `normalized_leaves`; at least one.
            layout: The layout of the observations, as stacks of frames.
            frame_stack: K, the number of frames in a stack; all have the same moments.
        """
        self._frame_stack = frame_stack
        self._key = substep_key
        self._features = VectorFeatures(layout)
        self._leaves = [leaf for leaf in layout.vectors if leaf.path in leaves]
        self._is_whole = len(self._leaves) == len(layout.vectors)
        # Columns of the vector, and the factors of these columns.
        self._parts: list[tuple[slice, NDArray[np.float32]]] = []
        self._clip = np.float32(math.inf)

    def load(self, state: PolicyState, *, clip: float) -> None:
        """Loads the moments from a checked state.

        Args:
            state: The policy's arrays.
            clip: Bound of normalised numbers, above 0.
        """
        prefix = f"{NORMALIZATION}.{self._key}"
        mean, scale = state[f"{prefix}.mean"], scale_of(state[f"{prefix}.variance"])
        self._clip = np.float32(clip)
        means: dict[str, NDArray[Any]] = {}
        self._parts = []
        start = 0
        for leaf in self._leaves:
            frame = slice(start, start + leaf.size // self._frame_stack)
            start = frame.stop
            means[leaf.path] = np.tile(mean[frame], self._frame_stack).astype(
                np.result_type(leaf.space.dtype, _FLOAT32)
            )
            self._parts.append((slice(leaf.offset, leaf.offset + leaf.size), np.tile(scale[frame], self._frame_stack)))
        if self._is_whole:
            self._parts = [(slice(None), np.concatenate([part for _, part in self._parts]))]
        self._features.subtract(means)

    def __call__(self, observation: Observation) -> NDArray[np.float32]:
        """Converts a batch of observations to normalised vectors.

        Args:
            observation: `[N, ...]` for every leaf.

        Returns:
            float32 `[N, F]`, in a buffer that the next call overwrites.
        """
        # Numbers beyond float32's largest overflow to an infinity, which is clipped.
        with np.errstate(over="ignore"):
            vector = self._features(observation)
            for columns, scale in self._parts:
                part = vector[:, columns]
                np.multiply(part, scale, out=part)
                np.maximum(part, -self._clip, out=part)
                np.minimum(part, self._clip, out=part)
        return vector
