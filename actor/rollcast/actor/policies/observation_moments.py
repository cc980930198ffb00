"""Normalises observations by moments that are part of a policy, in numpy; `torch_observation_moments` does it in torch.

Every leaf that is a Box of floats becomes

    y = clip((float32(x) - float32(mean)) * float32(1 / sqrt(variance + 1e-8)), -observation_clip, observation_clip)

with a mean and a variance for each of its numbers. These are the arrays `normalization.<substep>.mean`, `.variance`
(float64 `[F]`) and `.count` (int64 `[]`) of a policy; F counts the numbers of all such leaves, in the order of the
space. Only operations that IEEE 754 rounds correctly are used, in this order, so everybody gets the same bits. Other
leaves, such as images and Discrete ones, stay as they are.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from numpy.typing import NDArray

from rollcast.actor.policies.features import VectorLeaf
from rollcast.actor.policies.state_check import StateLayout
from rollcast.services.errors import InvalidTensorError
from rollcast.services.policies.policies import PolicyState
from rollcast.services.spaces.spaces import space_leaves

# Of the names of the arrays in a policy's state.
NORMALIZATION: Final = "normalization"

# Added to the variance, so that a number that never changes does not divide by 0; that of gymnasium and SB3.
VARIANCE_EPSILON: Final = 1e-8
# The smallest factor, float32's smallest normal number: processors may take smaller ones for 0.
_LEAST_SCALE: Final = float(np.finfo(np.float32).tiny)
# Halfway to the number that would follow float32's largest one: float64 up to here is rounded to a float32.
_MOST_MEAN: Final = float(np.nextafter(2.0**128 - 2.0**103, 0.0))


def normalized_leaves(observation_space: Space[Any]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the leaves that are normalised, Boxes of floats, by path in the order of the space."""
    return {
        path: leaf.shape
        for path, leaf in space_leaves(observation_space).items()
        if isinstance(leaf, Box) and np.dtype(leaf.dtype).kind == "f"
    }


def moments_layout(substep_key: str, leaves: Mapping[str, tuple[int, ...]]) -> StateLayout:
    """Returns the shapes and dtypes of the arrays of a substep, by name; nothing if no leaf is normalised.

    Args:
        substep_key: The substep.
        leaves: Its leaves, as `normalized_leaves` returns them.
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
    """Checks that a policy's moments can be used; their names, shapes and dtypes are known to be right.

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
                f"the policy's {name!r} holds {array[wrong][0]}; expected {expected}; the policy was damaged; take an "
                "earlier one"
            )


def mean_and_scale(
    mean: NDArray[np.generic], variance: NDArray[np.generic]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns what is subtracted from observations, and the factor after that.

    Args:
        mean: float64 `[F]`.
        variance: float64 `[F]`, at least 0.

    Returns:
        The mean and 1 / sqrt(variance + 1e-8), each float32 `[F]`.
    """
    scale = np.maximum(1.0 / np.sqrt(variance.astype(np.float64) + VARIANCE_EPSILON), _LEAST_SCALE)
    return mean.astype(np.float32), scale.astype(np.float32)


class VectorNormalizer:
    """A normaliser of the vectors `[N, F]` that `features.VectorFeatures` makes of observations.

    It owns a buffer; one thread calls it.
    """

    def __init__(
        self,
        substep_key: str,
        leaves: Mapping[str, tuple[int, ...]],
        vectors: tuple[VectorLeaf, ...],
        frame_stack: int = 1,
    ) -> None:
        """Prepares the normaliser.

        Args:
            substep_key: The substep of the observations.
            leaves: The leaves that are normalised, as `normalized_leaves` returns them; at least one.
            vectors: The leaves of which the vector consists, as stacks of frames.
            frame_stack: K, the frames of a stack, all normalised by the same moments.
        """
        self._frame_stack = frame_stack
        self._key = substep_key
        self._columns = [slice(leaf.offset, leaf.offset + leaf.size) for leaf in vectors if leaf.path in leaves]
        # Otherwise the vector is a buffer of `VectorFeatures`, which may be overwritten.
        self._is_whole = len(self._columns) == len(vectors)
        self._buffer = np.empty((0, 0), dtype=np.float32)
        self._parts: list[tuple[slice, NDArray[np.float32], NDArray[np.float32]]] = []
        self._clip = np.float32(math.inf)

    def load(self, state: PolicyState, *, clip: float) -> None:
        """Takes the moments from a checked state.

        Args:
            state: The policy's arrays.
            clip: Bound of normalised numbers, above 0.
        """
        prefix = f"{NORMALIZATION}.{self._key}"
        mean, scale = mean_and_scale(state[f"{prefix}.mean"], state[f"{prefix}.variance"])
        self._clip = np.float32(clip)
        sizes = [column.stop - column.start for column in self._columns]
        starts = [0, *np.cumsum(sizes)[:-1].tolist()]
        if self._frame_stack > 1:
            # K times the moments of a frame, leaf by leaf.
            n = self._frame_stack
            index = np.concatenate(
                [
                    np.tile(np.arange(start // n, (start + size) // n), n)
                    for start, size in zip(starts, sizes, strict=True)
                ]
            )
            mean, scale = mean[index], scale[index]
        if self._is_whole:
            self._parts = [(slice(None), mean, scale)]
            return
        self._parts = []
        for column, start in zip(self._columns, starts, strict=True):
            end = start + column.stop - column.start
            self._parts.append((column, mean[start:end], scale[start:end]))

    def __call__(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalises a batch of vectors.

        Args:
            vector: float32 `[N, F]`; overwritten if only some of its columns are normalised.

        Returns:
            float32 `[N, F]`, in a buffer that the next call overwrites.
        """
        out = vector
        if self._is_whole:
            if self._buffer.shape != vector.shape:
                self._buffer = np.empty(vector.shape, dtype=np.float32)
            out = self._buffer
        # Numbers near float32's largest overflow to an infinity, which is clipped.
        with np.errstate(over="ignore"):
            for columns, mean, scale in self._parts:
                part = out[:, columns]
                np.subtract(vector[:, columns], mean, out=part)
                np.multiply(part, scale, out=part)
                np.maximum(part, -self._clip, out=part)
                np.minimum(part, self._clip, out=part)
        return out
