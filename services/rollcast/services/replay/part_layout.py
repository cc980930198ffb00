"""Checks the header of one message of a batch, and finds its columns."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.services.columns.columns import Columns
from rollcast.services.columns.table import COLUMNS, COMMON_COLUMNS, FINAL_AXES, STEP_AXES
from rollcast.services.errors import InvalidTensorError
from rollcast.services.replay.batch_codec import ENTRY_FIELDS, INT64, SUBSTEP_FIELDS, TREES, Where
from rollcast.services.replay.replay import ReplayBatch, ReplayColumns
from rollcast.services.spaces.leaf_schema import BOOL
from rollcast.services.wire.bools import check_bools
from rollcast.services.wire.tensors import tensor_content, tensor_header
from rollcast.v1 import replay_pb2, tensor_pb2


class Slot(NamedTuple):
    """A column of a message.

    Attributes:
        where: The column's position in the batch.
        dtype: The dtype of the values.
        shape: The shape of the values.
        axis: The axis of the entries; None: a column of final observations.
        offset: The position of the column's bytes in the body.
        values: The values, if their bytes are not deferred.
    """

    where: Where
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    axis: int | None
    offset: int
    values: NDArray[Any] | None


class PartLayout:
    """The layout of a message's columns, from a checked header. `read` reads the columns.

    Args:
        proto: The message.

    Raises:
        InvalidTensorError: A tensor has a wrong dtype or shape.
    """

    def __init__(self, proto: replay_pb2.SampleResponse) -> None:
        self.part, self.parts, self.burn_in = proto.part, proto.parts, proto.burn_in
        self.slots: list[Slot] = []
        self.body_bytes = 0
        if len(proto.reward.shape) != 2:
            raise InvalidTensorError(f"the reward has shape {list(proto.reward.shape)}; expected [T, B]; sample again")
        n_steps, self.n_entries = proto.reward.shape
        n_finals = proto.final_index.shape[0] if proto.final_index.shape else 0
        for name, dtype in ENTRY_FIELDS.items():
            self._add(Where(name), getattr(proto, name), (self.n_entries,), 0, dtype)
        for substep in proto.substeps:
            self._add_substep(substep, (n_steps, self.n_entries), n_finals)
        for column in COMMON_COLUMNS:
            if column.axes == STEP_AXES:
                self._add(Where(column.name), getattr(proto, column.name), (n_steps, self.n_entries), 1, column.dtype)
        self._add(Where("final_index"), proto.final_index, (n_finals, 2), None, INT64)
        self._add(Where("policy_version"), proto.policy_version, (self.n_entries,), 0, INT64)
        self._fields = {slot.where.field: i for i, slot in enumerate(self.slots) if slot.where.substep is None}
        self._bools = [(column.name, self._fields[column.name]) for column in COMMON_COLUMNS if column.dtype == BOOL]
        self._substeps = {substep.key: self._numbered(substep.key) for substep in proto.substeps}
        # Parts of one batch have the same form.
        self.form = [(slot.where, slot.dtype, with_entries(slot, 0)) for slot in self.slots]
        # The body as one record, made after the check of the body's length. numpy returns the fields of a record in a
        # third of the time that it needs for separate arrays.
        self._record: np.dtype[Any] | None = None

    @property
    def is_reusable(self) -> bool:
        """True if the layout is valid for every message with the same header, because the header contains no values."""
        return all(slot.values is None or not slot.values.size for slot in self.slots)

    def read(self, body: memoryview) -> list[NDArray[Any]]:
        """Reads the message.

        Args:
            body: All deferred bytes.

        Returns:
            The message's columns in the order of `slots`; views of `body` for deferred tensors.

        Raises:
            InvalidTensorError: The body has a wrong size, or a bool is neither 0 nor 1.
        """
        if len(body) != self.body_bytes:
            raise InvalidTensorError(
                f"a part of a batch has a body of {len(body)} bytes; expected {self.body_bytes}, the size of its "
                "deferred tensors; sample again"
            )
        if self._record is None:
            self._record = _make_record(self.slots)
        record: NDArray[Any] = np.ndarray((), self._record, body)
        arrays = [record[str(number)] if slot.values is None else slot.values for number, slot in enumerate(self.slots)]
        for name, number in self._bools:
            check_bools(arrays[number], what=name)
        return arrays

    def batch(self, arrays: list[NDArray[Any]]) -> ReplayBatch:
        """Returns the batch that has these columns, in the order of `slots`."""
        return ReplayBatch(
            **{name: arrays[number] for name, number in self._fields.items()},
            burn_in=self.burn_in,
            substeps={key: numbers.picked(arrays, ReplayColumns) for key, numbers in self._substeps.items()},
        )

    def _add_substep(self, proto: replay_pb2.SampleSubstep, step_shape: tuple[int, int], n_finals: int) -> None:
        leading = {STEP_AXES: (step_shape, 1), FINAL_AXES: ((n_finals,), None)}
        for name, column in SUBSTEP_FIELDS.items():
            shape, axis = leading.get(column.axes, (step_shape[1:], 0))
            field = getattr(proto, name)
            if column.is_tree:
                for leaf in field:
                    self._add(Where(name, proto.key, leaf.path), leaf.tensor, shape, axis)
            elif column.dtype is None:
                self._add(Where(name, proto.key), field, shape, axis)
            elif proto.HasField(name):
                # A state may have any size.
                own = () if column.axes == STEP_AXES else (field.shape[-1] if field.shape else 0,)
                self._add(Where(name, proto.key), field, (*shape, *own), axis, column.dtype)

    def _numbered(self, key: str) -> Columns[int]:
        """Returns the positions of a substep's columns among `slots`."""
        numbers: dict[str, dict[str, int]] = {column.name: {} for column in COLUMNS}
        for number, slot in enumerate(self.slots):
            if slot.where.substep == key:
                numbers[SUBSTEP_FIELDS[slot.where.field].name][slot.where.path] = number
        return Columns[int].of(lambda column: numbers[column.name])

    def _add(
        self,
        where: Where,
        proto: tensor_pb2.Tensor,
        leading: tuple[int, ...],
        axis: int | None,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        """Adds the next tensor, of shape `leading` and `dtype`. Without a dtype, `leading` only begins the shape."""
        what = f"leaf {where.path!r}" if where.field in TREES else where.field
        dtype, shape, n_bytes = tensor_header(proto, dtype=dtype, shape=leading if dtype else None, what=what)
        if shape[: len(leading)] != leading:
            raise InvalidTensorError(
                f"{what} has shape {list(shape)}; expected it to begin with {list(leading)}; sample again"
            )
        if proto.deferred:
            self.slots.append(Slot(where, dtype, shape, axis, self.body_bytes, None))
            self.body_bytes += n_bytes
        else:
            values = tensor_content(proto, dtype, shape, n_bytes, what=what)
            self.slots.append(Slot(where, dtype, shape, axis, 0, values))


def with_entries(slot: Slot, n_entries: int) -> tuple[int, ...]:
    """Returns a column's shape in a batch of another size, without rows for final observations.

    Args:
        slot: The column.
        n_entries: The number of entries of the other batch.
    """
    axis = slot.axis or 0
    return (*slot.shape[:axis], 0 if slot.axis is None else n_entries, *slot.shape[axis + 1 :])


def _make_record(slots: list[Slot]) -> np.dtype[Any]:
    """Returns the dtype of the body as one record. Each column has a field, whose name is the column's number."""
    deferred = [(str(number), slot) for number, slot in enumerate(slots) if slot.values is None]
    try:
        return np.dtype(
            {
                "names": [name for name, _ in deferred],
                "formats": [(slot.dtype, slot.shape) for _, slot in deferred],
                "offsets": [slot.offset for _, slot in deferred],
            }
        )
    except ValueError as error:  # no bytes, but more rows than numpy allows
        raise InvalidTensorError(
            f"a part of a batch has columns of impossible shapes ({error}); expected the shapes of B entries; sample "
            "again"
        ) from error
