"""Where the columns of a rollout lie: inline in its tensors, or one after the other in its deferred bytes."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.services.spaces.columns import ColumnSchema
from rollcast.services.wire.tensors import DTYPE_NUMBERS, tensor_content
from rollcast.v1 import tensor_pb2

# Says, of the axes of a column and an index in it, of which environment a value is.
Whose: TypeAlias = Callable[[tuple[str, ...], tuple[int, ...]], str]


def _nobody(axes: tuple[str, ...], index: tuple[int, ...]) -> str:
    """Says nothing."""
    del axes, index
    return ""


@dataclass(frozen=True, slots=True)
class AgreedColumn:
    """What one column of every rollout looks like.

    Attributes:
        name: Where it stands: `"0/observation/camera"`, `"reward"`.
        schema: What its values look like.
        axes: Names of its leading dimensions.
        shape: Its whole shape; a first dimension of -1 stands for the N final observations.
        dtype_number: Its rollcast.v1.DataType.
        n_bytes: Its size, or that of one row where N is open.
    """

    name: str
    schema: ColumnSchema
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype_number: int
    n_bytes: int

    @classmethod
    def of(cls, name: str, schema: ColumnSchema, axes: tuple[str, ...], leading: tuple[int, ...]) -> Self:
        """Puts a column together; arguments as the attributes, `leading` for the dimensions before a value's."""
        shape = (*leading, *schema.shape)
        n_bytes = math.prod(dimension for dimension in shape if dimension >= 0) * schema.dtype.itemsize
        return cls(name, schema, axes, shape, DTYPE_NUMBERS[schema.dtype], n_bytes)


class Column(NamedTuple):
    """One tensor of a rollout whose header has been checked; `proto` is None where it was left out: no rows."""

    agreed: AgreedColumn
    proto: tensor_pb2.Tensor | None
    shape: tuple[int, ...]
    n_bytes: int

    @property
    def is_deferred(self) -> bool:
        """Whether its bytes are not in its tensor."""
        return self.proto is not None and self.proto.deferred


class _Run(NamedTuple):
    """Deferred columns that lie next to each other and whose values are checked by one and the same rule."""

    schema: ColumnSchema
    offset: int
    n_values: int
    columns: Sequence[Column]


class RolloutLayout:
    """The columns of a checked header, and how to read them.

    Args:
        columns: Every column, in the order in which deferred bytes follow.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._elsewhere = tuple(column for column in columns if not column.is_deferred)
        self._deferred = tuple(column for column in columns if column.is_deferred)
        self._offsets = tuple(itertools.accumulate((column.n_bytes for column in self._deferred), initial=0))
        self.n_bytes: Final = sum(column.n_bytes for column in columns)
        self._runs = tuple(run for run in _runs(self._deferred, self._offsets) if run.schema.is_checked)

    @property
    def n_deferred_bytes(self) -> int:
        """How many bytes the deferred columns have together."""
        return self._offsets[-1]

    @property
    def is_reusable(self) -> bool:
        """Whether it holds for every rollout with an equal header: nothing of it is in the header itself."""
        return all(column.proto is None for column in self._elsewhere)

    def read(self, deferred: memoryview, *, what: str, whose: Whose = _nobody) -> Mapping[str, NDArray[Any]]:
        """Reads all columns and checks their values.

        Args:
            deferred: The deferred bytes, all of them.
            what: Whose columns they are, for messages.
            whose: Says of axes and an index in a column of which environment that value is, likewise.

        Returns:
            The columns by name; those that were deferred are views of `deferred`, those that came inline read-only.

        Raises:
            InvalidTensorError: A value is not allowed, or an inline tensor has not the bytes that its shape says.
        """
        values: dict[str, NDArray[Any]] = {}
        for agreed, proto, shape, n_bytes in self._elsewhere:
            if proto is None:
                values[agreed.name] = np.empty(shape, agreed.schema.dtype)
                continue
            array = tensor_content(proto, agreed.schema.dtype, shape, n_bytes, what=what + agreed.name)
            _check(agreed, array, what, whose)
            values[agreed.name] = array
        for column, offset in zip(self._deferred, self._offsets, strict=False):
            values[column.agreed.name] = np.ndarray(column.shape, column.agreed.schema.dtype, deferred, offset)
        with np.errstate(all="ignore"):
            doubtful = [
                columns
                for schema, offset, n_values, columns in self._runs
                if not schema.may_hold(np.ndarray((n_values,), schema.dtype, deferred, offset))
            ]
        for agreed, *_ in itertools.chain.from_iterable(doubtful):
            _check(agreed, values[agreed.name], what, whose)
        return values


def _check(agreed: AgreedColumn, values: NDArray[Any], what: str, whose: Whose) -> None:
    agreed.schema.check_values(
        values, what=what + agreed.name, axes=agreed.axes, whose=functools.partial(whose, agreed.axes)
    )


def _runs(columns: Sequence[Column], offsets: Sequence[int]) -> Iterator[_Run]:
    start = 0
    for stop in range(1, len(columns) + 1):
        schema = columns[start].agreed.schema
        if stop < len(columns) and schema.is_checked_like(columns[stop].agreed.schema):
            continue
        n_values = (offsets[stop] - offsets[start]) // schema.dtype.itemsize
        yield _Run(schema, offsets[start], n_values, columns[start:stop])
        start = stop
