"""What a column of a rollout, or of a batch of observations, may hold: dtype, shape and values of one leaf."""

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
from rollcast.services.wire.tensors import check_bools

FLOAT32: Final[np.dtype[Any]] = np.dtype(np.float32)
BOOL: Final[np.dtype[Any]] = np.dtype(np.bool_)
INT32: Final[np.dtype[Any]] = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class LeafSchema:
    """What the values of one column look like, behind its leading dimensions.

    Attributes:
        dtype: The dtype, exactly.
        shape: The shape of one value.
        low: The smallest value allowed, a scalar or an array of `shape`; None: anything. Bounds of a Box are not
            checked, because environments overstep them and their training still works.
        n_values: How many values from `low` up are allowed, likewise.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    low: NDArray[Any] | int | None = None
    n_values: NDArray[Any] | int | None = None

    @property
    def is_checked(self) -> bool:
        """Whether there are values of its dtype that it may not hold."""
        return self.dtype.kind in "fb" or self.n_values is not None

    def is_checked_like(self, other: "LeafSchema") -> bool:
        """Whether `may_hold` may look at values of both at once: floats, or bools, of one dtype."""
        return self.dtype == other.dtype and self.dtype.kind in "fb"

    def may_hold(self, values: NDArray[Any]) -> bool:
        """Whether all values are certainly allowed; one pass over them. To be called where numpy's warnings are off.

        Args:
            values: Of `dtype`, C-contiguous; their shape does not matter where `low` is a number.

        Returns:
            True: they are. False: `check_values` has to look for one that is not; there may be none.
        """
        if not values.size or not self.is_checked:
            return True
        kind = self.dtype.kind
        if kind == "f":
            # A sum that is finite has no NaN and no infinity in it. The converse fails only on overflow.
            return math.isfinite(np.add.reduce(values, None, FLOAT32 if values.dtype.itemsize <= 2 else None))
        if kind == "b":
            return int(values.view(np.uint8).max()) <= 1
        low, n_values = self.low, self.n_values
        if not (isinstance(n_values, int) and isinstance(low, int)):
            return False
        if low == 0:
            # as unsigned numbers, those below 0 are the largest
            return int(values.view(f"u{self.dtype.itemsize}").max()) < n_values
        return int(values.min()) >= low and int(values.max()) < low + n_values

    def check_values(
        self,
        values: NDArray[Any],
        *,
        what: str,
        axes: tuple[str, ...],
        whose: Callable[[tuple[int, ...]], str] = lambda _index: "",
    ) -> None:
        """Refuses what no policy could learn from: NaN, infinities, values outside a discrete range, odd bools.

        Args:
            values: `[*axes, *shape]` of `dtype`, C-contiguous.
            what: What the column is, for the message.
            axes: Names of the leading dimensions, for the message: `("t", "b")`.
            whose: Says of an index whose value it is, for the message.

        Raises:
            InvalidTensorError: A value is not allowed; the message has its index.
        """
        with np.errstate(all="ignore"):
            if self.may_hold(values):
                return
        if self.dtype.kind == "b":
            check_bools(values, what=what)
            return
        if self.dtype.kind == "f":
            wrong, expected = ~np.isfinite(values), "finite numbers"
        else:
            wrong, expected = self._out_of_range(values)
        if wrong.any():
            index = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
            raise InvalidTensorError(
                f"{what} holds {values[index]}{_place(index, axes)}{whose(index)}; expected {expected}; {_ADVICE}"
            )

    def _out_of_range(self, values: NDArray[Any]) -> tuple[NDArray[np.bool_], str]:
        """Which values are outside the range, and what it is."""
        low, n_values = self.low, self.n_values
        assert low is not None  # set together, by leaf_schema
        assert n_values is not None
        wrong = (values < low) | (values > low + (n_values - 1))  # `values - low` could wrap around
        if isinstance(low, int) and isinstance(n_values, int):
            return wrong, f"{low} to {low + n_values - 1}"
        return wrong, f"values from {low} with {n_values} choices".replace("\n", "")


_ADVICE: Final = "find where the environment or the policy makes it"


def leaf_schema(space: gymnasium.Space[Any]) -> LeafSchema:
    """The column of a leaf space.

    Args:
        space: Box, Discrete, MultiBinary or MultiDiscrete.

    Returns:
        What its values look like.

    Raises:
        InvalidSpaceError: It is another kind of space.
    """
    if isinstance(space, spaces.Box):
        return LeafSchema(np.dtype(space.dtype), space.shape)
    if isinstance(space, spaces.Discrete):
        return LeafSchema(np.dtype(space.dtype), (), int(space.start), int(space.n))
    if isinstance(space, spaces.MultiBinary):
        return LeafSchema(np.dtype(space.dtype), tuple(space.shape), 0, 2)
    if isinstance(space, spaces.MultiDiscrete):
        # In int64, lest the upper bound wraps around in a narrow type.
        return LeafSchema(np.dtype(space.dtype), space.shape, space.start.astype(np.int64), space.nvec.astype(np.int64))
    raise InvalidSpaceError(f"{describe_space(space)} is no leaf; expected Box, Discrete, MultiBinary or MultiDiscrete")


def _place(index: tuple[int, ...], axes: tuple[str, ...]) -> str:
    leading, rest = index[: len(axes)], index[len(axes) :]
    where = f" at ({', '.join(axes)}) = ({', '.join(map(str, leading))})" if axes else ""
    return where + (f", element {list(rest)}" if rest else "")
