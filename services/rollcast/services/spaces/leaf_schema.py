"""Describes the dtype, shape and range of one leaf of a space, and checks values against them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollcast.services.errors import InvalidSpaceError, InvalidTensorError
from rollcast.services.spaces.spaces import describe_space
from rollcast.services.wire.bools import check_bools

FLOAT32: Final[np.dtype[Any]] = np.dtype(np.float32)
BOOL: Final[np.dtype[Any]] = np.dtype(np.bool_)
INT32: Final[np.dtype[Any]] = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class LeafSchema:
    """The dtype, shape and allowed values of one entry of a column.

    Attributes:
        dtype: The exact dtype.
        shape: The shape of one entry.
        low: The smallest allowed value, a scalar or an array of `shape`; None: no limit. Bounds of a Box are not
            checked, because some environments exceed them, and training still works.
        n_values: The number of allowed values from `low` upwards, a scalar or an array like `low`.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    low: NDArray[Any] | int | None = None
    n_values: NDArray[Any] | int | None = None

    @property
    def is_checked(self) -> bool:
        """True if the dtype has forbidden values."""
        return self.dtype.kind in "fb" or self.n_values is not None

    def is_checked_like(self, other: "LeafSchema") -> bool:
        """Returns whether one pass can check values of both schemas: floats or bools of the same dtype."""
        return self.dtype == other.dtype and self.dtype.kind in "fb"

    def are_surely_allowed(self, values: NDArray[Any]) -> bool:
        """Returns whether all values are certainly allowed, in one pass. Call this with numpy's warnings off.

        Args:
            values: Values of `dtype`, C-contiguous, of any shape if `low` is a number.

        Returns:
            True if all values are allowed. False if a value may be forbidden: `check_values` then finds out.
        """
        if not values.size or not self.is_checked:
            return True
        kind = self.dtype.kind
        if kind == "f":
            # A finite sum contains no NaN and no infinity. The converse fails only on overflow.
            return math.isfinite(np.add.reduce(values, None, FLOAT32 if values.dtype.itemsize <= 2 else None))
        if kind == "b":
            return int(values.view(np.uint8).max()) <= 1
        low, n_values = self.low, self.n_values
        if not (isinstance(n_values, int) and isinstance(low, int)):
            return False
        if low == 0:
            # Read as unsigned, negative numbers are the largest.
            return int(values.view(f"u{self.dtype.itemsize}").max()) < n_values
        return int(values.min()) >= low and int(values.max()) < low + n_values

    def check_values(
        self,
        values: NDArray[Any],
        *,
        what: str,
        axes: tuple[str, ...],
        owner: Callable[[tuple[int, ...]], str] = lambda _index: "",
        advice: str = "find its source in the environment or the policy",
    ) -> None:
        """Refuses values that would break training: NaN, infinities, values outside a discrete range, invalid bools.

        Args:
            values: `[*axes, *shape]` of `dtype`, C-contiguous.
            what: The description of the column in messages.
            axes: The names of the leading dimensions in messages, such as `("t", "b")`.
            owner: Returns the description of the owner of the value at an index, for messages.
            advice: What to do, for messages.

        Raises:
            InvalidTensorError: A value is forbidden. The message contains the index of the value.
        """
        with np.errstate(all="ignore"):
            if self.are_surely_allowed(values):
                return
        if self.dtype.kind == "b":
            check_bools(values, what=what)
            return
        wrong = ~np.isfinite(values) if self.dtype.kind == "f" else self._out_of_range(values)
        if wrong.any():
            index = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
            raise InvalidTensorError(
                f"{what} holds {values[index]}{_place(index, axes)}{owner(index)}; "
                f"expected {self._allowed(index[len(axes) :])}; {advice}"
            )

    def _out_of_range(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Returns a mask of the values outside the range."""
        low, n_values = self.low, self.n_values
        assert low is not None  # leaf_schema sets both
        assert n_values is not None
        return (values < low) | (values > low + (n_values - 1))  # `values - low` could wrap around

    def _allowed(self, element: tuple[int, ...]) -> str:
        """Returns a description of the values that an element may have."""
        if self.dtype.kind == "f":
            return "finite numbers"
        assert self.low is not None  # leaf_schema sets both
        assert self.n_values is not None
        low, n_values = (int(np.broadcast_to(bound, self.shape)[element]) for bound in (self.low, self.n_values))
        return f"{low} to {low + n_values - 1}"


def leaf_schema(space: gymnasium.Space[Any]) -> LeafSchema:
    """Returns the schema of a leaf space.

    Args:
        space: Box, Discrete, MultiBinary or MultiDiscrete.

    Raises:
        InvalidSpaceError: The space is of another kind.
    """
    if isinstance(space, spaces.Box):
        return LeafSchema(np.dtype(space.dtype), space.shape)
    if isinstance(space, spaces.Discrete):
        return LeafSchema(np.dtype(space.dtype), (), int(space.start), int(space.n))
    if isinstance(space, spaces.MultiBinary):
        return LeafSchema(np.dtype(space.dtype), tuple(space.shape), 0, 2)
    if isinstance(space, spaces.MultiDiscrete):
        # In int64, so that the upper bound does not wrap around in a narrow type.
        return LeafSchema(np.dtype(space.dtype), space.shape, space.start.astype(np.int64), space.nvec.astype(np.int64))
    raise InvalidSpaceError(
        f"{describe_space(space)} is not a leaf; expected Box, Discrete, MultiBinary or MultiDiscrete"
    )


def _place(index: tuple[int, ...], axes: tuple[str, ...]) -> str:
    leading, rest = index[: len(axes)], index[len(axes) :]
    where = f" at ({', '.join(axes)}) = ({', '.join(map(str, leading))})" if axes else ""
    return where + (f", element {list(rest)}" if rest else "")
