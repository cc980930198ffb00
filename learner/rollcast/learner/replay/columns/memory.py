"""Where the large columns of a store lie: the seam, and main memory. `device_memory` is the learner's device."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# Rows of this size are not written for nothing, where a span has one that takes no value.
_LARGE_ROW_BYTES: Final = 4096

# A column of a store or of a sample: numpy's in main memory, torch's on the learner's device.
ColumnArray: TypeAlias = NDArray[Any] | Tensor


class Blocks(NamedTuple):
    """Rows of B trajectories of T steps: step t of trajectory b is row `stride * blocks[b] + t`.

    Attributes:
        stop: The row after the last block; a whole number of strides.
        stride: Rows of a block, at least T.
        blocks: int64 `[B]`, which of them.
    """

    stop: int
    stride: int
    blocks: NDArray[np.int64]

    def rows(self, n_steps: int) -> NDArray[np.int64]:
        """The rows one by one, int64 `[T, B]`."""
        rows: NDArray[np.int64] = self.stride * self.blocks + np.arange(n_steps)[:, None]
        return rows


class Span(NamedTuple):
    """Rows that follow each other: row `first + i` takes value `source[i]`, counted through `[T, B]`.

    Attributes:
        first: The first row.
        source: int64 `[N]`; -1 for a row that takes no value: what is in it afterwards is not said.
    """

    first: int
    source: NDArray[np.int64]

    def rows(self, n_values: int) -> NDArray[np.int64]:
        """The row of every value, int64 `[n_values]`; -1 for one that goes nowhere."""
        rows = np.full(n_values, -1)
        (taking,) = (self.source >= 0).nonzero()
        rows[self.source[taking]] = self.first + taking
        return rows


Rows: TypeAlias = NDArray[np.int64] | Blocks | Span


class Write(NamedTuple):
    """Values for rows.

    Attributes:
        columns: Each `[n_rows, ...]`.
        rows: int64 `[N]`, none twice; or blocks, or a span.
        values: `[N, ...]`, or `[T, B, ...]`, one a column.
    """

    columns: Sequence[ColumnArray]
    rows: Rows
    values: Sequence[NDArray[Any]]


class Gather(Protocol):
    """Fills the arrays of one room."""

    def __call__(self, following: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Copies rows of columns into the room.

        Args:
            following: int64 `[B]`, rows of the next observations, each in [0, n_rows]; n_rows is row 0 again.
            rows: int64 `[T * B]`, rows of the steps, each in [0, n_rows).
        """


class ColumnMemory(Protocol):
    """Allocates columns, writes rows into them, and gathers rows of them. The buffer's lock guards writes and gathers.

    Arrays that one memory has made are for no other.
    """

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ColumnArray:
        """An array of zeros; in main memory its pages are taken when they are first written."""

    def write(self, writes: Sequence[Write]) -> None:
        """Copies values into rows, one write after the other."""

    def read(self, columns: Sequence[ColumnArray], rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Copies of rows, int64 `[N]`, in main memory, one a column."""

    def gather(
        self,
        next_columns: Sequence[ColumnArray],
        next_targets: Sequence[ColumnArray],
        step_columns: Sequence[ColumnArray],
        step_targets: Sequence[ColumnArray],
    ) -> Gather:
        """Makes what fills a room: targets `[B, ...]` and `[T * B, ...]`, one a column."""

    def keep(self, arrays: Sequence[NDArray[Any]], sizes: Sequence[int]) -> list[list[ColumnArray]]:
        """Copies arrays `[N, ...]`, cut along N into pieces of these sizes; all arrays' first pieces come first."""

    def join(self, pieces: Sequence[ColumnArray]) -> ColumnArray:
        """Joins pieces of `keep`, at least one, into a new array."""


class MainMemory:
    """numpy's arrays."""

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """See `ColumnMemory.zeros`."""
        return np.zeros(shape, dtype)

    def write(self, writes: Sequence[Write]) -> None:
        """See `ColumnMemory.write`."""
        for columns, rows, values in writes:
            write_rows(cast("Sequence[NDArray[Any]]", columns), rows, values)  # no other memory has made them

    def read(self, columns: Sequence[ColumnArray], rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        """See `ColumnMemory.read`."""
        return [column.take(rows, 0) for column in cast("Sequence[NDArray[Any]]", columns)]

    def gather(
        self,
        next_columns: Sequence[ColumnArray],
        next_targets: Sequence[ColumnArray],
        step_columns: Sequence[ColumnArray],
        step_targets: Sequence[ColumnArray],
    ) -> Gather:
        """See `ColumnMemory.gather`."""
        return _MainGather(_takes(next_columns, next_targets), _takes(step_columns, step_targets))

    def keep(self, arrays: Sequence[NDArray[Any]], sizes: Sequence[int]) -> list[list[ColumnArray]]:
        """See `ColumnMemory.keep`."""
        cuts = np.cumsum(sizes)[:-1]
        cut = [np.split(array, cuts) for array in arrays]
        return [[array.copy() for array in pieces] for pieces in zip(*cut, strict=True)]

    def join(self, pieces: Sequence[ColumnArray]) -> NDArray[Any]:
        """See `ColumnMemory.join`."""
        return np.concatenate([host_array(piece) for piece in pieces])


def write_rows(columns: Sequence[NDArray[Any]], rows: Rows, values: Sequence[NDArray[Any]]) -> None:
    """Copies values into rows of columns in main memory; see `Write`."""
    if isinstance(rows, Span):
        _write_span(columns, rows, values)
        return
    if not isinstance(rows, Blocks):
        for column, source in zip(columns, values, strict=True):
            column[rows] = source
        return
    stop, stride, blocks = rows
    where = (blocks, slice(len(values[0])))
    for column, source in zip(columns, values, strict=True):
        column[:stop].reshape(stop // stride, stride, *column.shape[1:])[where] = source.swapaxes(0, 1)


def _write_span(columns: Sequence[NDArray[Any]], span: Span, values: Sequence[NDArray[Any]]) -> None:
    """Gathers what follows each other in the columns: with 4 floats a row, in a ninth of the time of scattering it."""
    first, source = span
    runs: list[tuple[int, int]] | None = None
    for column, array in zip(columns, values, strict=True):
        flat = array.reshape(-1, *column.shape[1:])
        if column.strides[0] < _LARGE_ROW_BYTES:
            flat.take(source, 0, column[first : first + len(source)], "clip")
            continue
        runs = _runs(source) if runs is None else runs
        for start, stop in runs:
            flat.take(source[start:stop], 0, column[first + start : first + stop], "clip")


def _runs(source: NDArray[np.int64]) -> list[tuple[int, int]]:
    """From where to where rows take values."""
    takes = np.zeros(len(source) + 2, np.bool_)
    np.greater_equal(source, 0, out=takes[1:-1])
    edges = (takes[1:] != takes[:-1]).nonzero()[0].tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def host_array(array: ColumnArray) -> NDArray[Any]:
    """A column in main memory.

    Args:
        array: Wherever it is.

    Returns:
        The same array where it is there already; else a copy, which is complete.
    """
    if isinstance(array, Tensor):
        copied: NDArray[Any] = array.detach().to("cpu", copy=True).numpy()
        return copied
    return array


# A column's own `take`, and where to.
_Take: TypeAlias = tuple[Callable[..., NDArray[Any]], NDArray[Any]]


class _MainGather:
    """See `Gather`. The bound methods are looked up once."""

    __slots__ = ("_next", "_steps")

    def __init__(self, next_takes: list[_Take], step_takes: list[_Take]) -> None:
        self._next = next_takes
        self._steps = step_takes

    def __call__(self, following: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        for take, target in self._next:
            take(following, 0, target, "wrap")
        # after them, because the first it takes are small rows beside theirs, in cache now
        for take, target in self._steps:
            take(rows, 0, target, "clip")  # "raise" would gather into a buffer first


def _takes(columns: Sequence[ColumnArray], targets: Sequence[ColumnArray]) -> list[_Take]:
    takes: list[_Take] = []
    for column, target in zip(columns, targets, strict=True):
        assert isinstance(column, np.ndarray)
        assert isinstance(target, np.ndarray)
        takes.append((column.take, target))
    return takes
