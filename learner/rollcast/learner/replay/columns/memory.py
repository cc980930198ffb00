"""Defines the interface to the memory of a store's large columns, and implements it for main memory."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# From this row size on, rows of a span without a value are skipped instead of overwritten.
_LARGE_ROW_BYTES: Final = 4096

# A column of a store or of a sample: a numpy array in main memory, a tensor on the learner's device.
ColumnArray: TypeAlias = NDArray[Any] | Tensor

# Columns, each with the array that takes its rows.
Pairs: TypeAlias = Sequence[tuple[ColumnArray, ColumnArray]]


class Blocks(NamedTuple):
    """Rows of B trajectories of T steps: step t of trajectory b is row `stride * blocks[b] + t`.

    Attributes:
        stop: The row after the last block; a multiple of the stride.
        stride: Rows of a block, at least T.
        blocks: int64 `[B]`, the block of each trajectory.
    """

    stop: int
    stride: int
    blocks: NDArray[np.int64]

    def rows(self, n_steps: int) -> NDArray[np.int64]:
        """Returns the rows one by one, int64 `[T, B]`."""
        rows: NDArray[np.int64] = self.stride * self.blocks + np.arange(n_steps)[:, None]
        return rows


class Span(NamedTuple):
    """Consecutive rows: row `first + i` takes value `source[i]`, counted through `[T, B]`.

    Attributes:
        first: The first row.
        source: int64 `[N]`; -1 for a row without a value, whose content is undefined afterwards.
    """

    first: int
    source: NDArray[np.int64]

    def rows(self, n_values: int) -> NDArray[np.int64]:
        """Returns the row of every value, int64 `[n_values]`; -1 for values without a row."""
        rows = np.full(n_values, -1)
        (taking,) = (self.source >= 0).nonzero()
        rows[self.source[taking]] = self.first + taking
        return rows


Rows: TypeAlias = NDArray[np.int64] | Blocks | Span


class Write(NamedTuple):
    """Values to write into rows.

    Attributes:
        columns: The columns, each `[n_rows, ...]`.
        rows: int64 `[N]` without repeats, or blocks, or a span.
        values: One array for each column, `[N, ...]`, or `[T, B, ...]` for blocks and spans.
    """

    columns: Sequence[ColumnArray]
    rows: Rows
    values: Sequence[NDArray[Any]]


# Copies rows of columns into the arrays of one room. Takes int64 `[B]`, the rows of the next observations, each in
# [0, n_rows], where n_rows is row 0 again; and int64 `[T * B]`, the rows of the steps, each in [0, n_rows).
Gather: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64]], None]

# Arrays that are being copied to main memory: waits for them, and returns them. Any thread may call it, without a lock.
PendingArrays: TypeAlias = Callable[[], list[NDArray[Any]]]
# The same for arrays by name.
PendingRows: TypeAlias = Callable[[], dict[str, NDArray[Any]]]


class ColumnMemory(Protocol):
    """Allocates columns, writes rows into them, and gathers rows from them. The buffer's lock guards both.

    A memory works only with arrays that it has made.
    """

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ColumnArray:
        """Makes an array of zeros; in main memory, pages are allocated when they are first written."""

    def write(self, writes: Sequence[Write]) -> None:
        """Copies values into rows, in the order of the writes."""

    def read(self, columns: Sequence[ColumnArray], rows: NDArray[np.int64]) -> PendingArrays:
        """Begins to copy rows int64 `[N]` of each column, as they are now, into new arrays in main memory."""

    def fetch(self, arrays: Sequence[ColumnArray]) -> PendingArrays:
        """Begins to copy arrays, which must not change, into main memory. Shares arrays that are there."""

    def gather(self, next_pairs: Pairs, step_pairs: Pairs) -> Gather:
        """Makes the function that fills a room, from pairs of columns and targets, `[B, ...]` and `[T * B, ...]`."""

    def keep(self, arrays: Sequence[NDArray[Any]], sizes: Sequence[int]) -> list[list[ColumnArray]]:
        """Copies arrays `[N, ...]`, cut along N into chunks of these sizes; returns the chunks of each size."""

    def join(self, pieces: Sequence[ColumnArray]) -> ColumnArray:
        """Concatenates at least one chunk from `keep` into a new array."""


class MainMemory:
    """A `ColumnMemory` of numpy arrays."""

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """See `ColumnMemory.zeros`."""
        return np.zeros(shape, dtype)

    def write(self, writes: Sequence[Write]) -> None:
        """See `ColumnMemory.write`."""
        for columns, rows, values in writes:
            write_rows(cast("Sequence[NDArray[Any]]", columns), rows, values)  # this memory made them

    def read(self, columns: Sequence[ColumnArray], rows: NDArray[np.int64]) -> PendingArrays:
        """See `ColumnMemory.read`. The rows are copied before the call returns."""
        copied = [column.take(rows, 0) for column in cast("Sequence[NDArray[Any]]", columns)]
        return lambda: copied

    def fetch(self, arrays: Sequence[ColumnArray]) -> PendingArrays:
        """See `ColumnMemory.fetch`. The arrays are shared."""
        return lambda: [host_array(array) for array in arrays]

    def gather(self, next_pairs: Pairs, step_pairs: Pairs) -> Gather:
        """See `ColumnMemory.gather`. The bound methods are looked up once."""
        next_takes, step_takes = _takes(next_pairs), _takes(step_pairs)

        def gather(following: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
            for take, target in next_takes:
                take(following, 0, target, "wrap")
            # steps come second: their first columns are small rows beside those just read, which are in cache
            for take, target in step_takes:
                take(rows, 0, target, "clip")  # "raise" would gather into a buffer first

        return gather

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
    """Gathers values into consecutive rows, which is faster than scattering them."""
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
    """Returns the start and the end of each run of rows with values."""
    takes = np.zeros(len(source) + 2, np.bool_)
    np.greater_equal(source, 0, out=takes[1:-1])
    edges = (takes[1:] != takes[:-1]).nonzero()[0].tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def host_array(array: ColumnArray) -> NDArray[Any]:
    """Returns the same array if it is in main memory, else a copy in main memory."""
    if isinstance(array, Tensor):
        copied: NDArray[Any] = array.detach().to("cpu", copy=True).numpy()
        return copied
    return array


def numbered(name: str, arrays: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Returns arrays with numbered names that begin with `name`."""
    return {f"{name}{i}": array for i, array in enumerate(arrays)}


# The bound `take` of a column, and the array it fills.
_Take: TypeAlias = tuple[Callable[..., NDArray[Any]], NDArray[Any]]


def _takes(pairs: Pairs) -> list[_Take]:
    takes: list[_Take] = []
    for column, target in pairs:
        assert isinstance(column, np.ndarray)
        assert isinstance(target, np.ndarray)
        takes.append((column.take, target))
    return takes
