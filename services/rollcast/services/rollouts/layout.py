"""Locates the columns of a rollout in its tensors and in its deferred bytes, and reads them."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.services.columns.schema import ColumnSchema
from rollcast.services.spaces.leaf_schema import LeafSchema
from rollcast.services.wire.tensors import tensor_content
from rollcast.v1 import tensor_pb2

# Takes a column's axes and the index of a value. Returns a description of the value's environment.
Owner: TypeAlias = Callable[[tuple[str, ...], tuple[int, ...]], str]


def _unknown(axes: tuple[str, ...], index: tuple[int, ...]) -> str:
    del axes, index
    return ""


class CheckedTensor(NamedTuple):
    """One tensor of a rollout, with a checked header. `proto` is None for a column without rows."""

    schema: ColumnSchema
    proto: tensor_pb2.Tensor | None
    shape: tuple[int, ...]
    n_bytes: int

    @property
    def is_deferred(self) -> bool:
        """True if the tensor's bytes are in the message's body."""
        return self.proto is not None and self.proto.deferred


class _Run(NamedTuple):
    """Adjacent deferred columns that one pass can check."""

    leaf: LeafSchema
    offset: int
    n_values: int
    columns: Sequence[CheckedTensor]


class RolloutLayout:
    """The layout of the columns of a checked header. `read` reads the columns.

    Args:
        columns: Every column, in the order of the deferred bytes.
    """

    def __init__(self, columns: Sequence[CheckedTensor]) -> None:
        self._elsewhere = tuple(column for column in columns if not column.is_deferred)
        self._deferred = tuple(column for column in columns if column.is_deferred)
        self._offsets = tuple(itertools.accumulate((column.n_bytes for column in self._deferred), initial=0))
        self.n_bytes: Final = sum(column.n_bytes for column in columns)
        self._runs = tuple(run for run in _runs(self._deferred, self._offsets) if run.leaf.is_checked)

    @property
    def n_deferred_bytes(self) -> int:
        """The size of all deferred columns together."""
        return self._offsets[-1]

    @property
    def is_reusable(self) -> bool:
        """True if the layout is valid for every rollout with an equal header, because the header contains no values."""
        return all(column.proto is None for column in self._elsewhere)

    def read(self, deferred: memoryview, *, what: str, owner: Owner = _unknown) -> Mapping[str, NDArray[Any]]:
        """Reads all columns and checks their values.

        Args:
            deferred: All deferred bytes.
            what: The description of the rollout in messages.
            owner: Returns the description of a value's environment in messages.

        Returns:
            The columns by name. Deferred columns are views of `deferred`; inline columns are read-only.

        Raises:
            InvalidTensorError: A value is forbidden, or the size of an inline tensor does not match its shape.
        """
        values: dict[str, NDArray[Any]] = {}
        for schema, proto, shape, n_bytes in self._elsewhere:
            if proto is None:
                values[schema.name] = np.empty(shape, schema.leaf.dtype)
                continue
            array = tensor_content(proto, schema.leaf.dtype, shape, n_bytes, what=what + schema.name)
            _check(schema, array, what, owner)
            values[schema.name] = array
        for column, offset in zip(self._deferred, self._offsets, strict=False):
            values[column.schema.name] = np.ndarray(column.shape, column.schema.leaf.dtype, deferred, offset)
        with np.errstate(all="ignore"):
            doubtful = [
                columns
                for leaf, offset, n_values, columns in self._runs
                if not leaf.are_surely_allowed(np.ndarray((n_values,), leaf.dtype, deferred, offset))
            ]
        for schema, *_ in itertools.chain.from_iterable(doubtful):
            _check(schema, values[schema.name], what, owner)
        return values


def _check(schema: ColumnSchema, values: NDArray[Any], what: str, owner: Owner) -> None:
    schema.leaf.check_values(
        values, what=what + schema.name, axes=schema.axes, owner=functools.partial(owner, schema.axes)
    )


def _runs(columns: Sequence[CheckedTensor], offsets: Sequence[int]) -> Iterator[_Run]:
    start = 0
    for stop in range(1, len(columns) + 1):
        leaf = columns[start].schema.leaf
        if stop < len(columns) and leaf.is_checked_like(columns[stop].schema.leaf):
            continue
        n_values = (offsets[stop] - offsets[start]) // leaf.dtype.itemsize
        yield _Run(leaf, offsets[start], n_values, columns[start:stop])
        start = stop
