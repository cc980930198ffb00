"""Checks the header of one message of a batch, and finds its columns."""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.services.errors import InvalidTensorError
from rollcast.services.replay.batch_codec import ENTRY_FIELDS, FLOAT32, INT64, LEAVES, STEP_FIELDS, Where
from rollcast.services.replay.replay import ReplayBatch, ReplayColumns
from rollcast.services.wire.bools import check_bools
from rollcast.services.wire.tensors import tensor_content, tensor_header
from rollcast.v1 import replay_pb2, tensor_pb2

_BOOL: Final = np.dtype(np.bool_)


class Slot(NamedTuple):
    """A column of a message.

    Attributes:
        where: Its place in the batch.
        dtype: Its dtype.
        shape: Its shape.
        axis: The axis of the entries; None: its rows are final observations.
        offset: The position of its bytes in the body.
        values: Its values, if its bytes are not deferred.
    """

    where: Where
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    axis: int | None
    offset: int
    values: NDArray[Any] | None


class _NumberedColumns(NamedTuple):
    """The positions of one substep's columns; those of leaves by path, in the order of `LEAVES`."""

    key: str
    action: int
    log_prob: int | None
    initial_state: int | None
    leaves: tuple[dict[str, int], ...]

    @classmethod
    def of(cls, key: str, numbers: dict[Where, int]) -> "_NumberedColumns":
        """Finds the positions of a substep's columns."""
        leaves = tuple(
            {where.path: number for where, number in numbers.items() if (where.field, where.substep) == (name, key)}
            for name in LEAVES
        )
        log_prob, initial_state = (numbers.get(Where(name, key)) for name in ("log_prob", "initial_state"))
        return cls(key, numbers[Where("action", key)], log_prob, initial_state, leaves)

    def columns(self, arrays: list[NDArray[Any]]) -> ReplayColumns:
        """Returns the substep's columns."""
        observation, next_observation, final_observation, previous_observation = (
            {path: arrays[number] for path, number in leaves.items()} for leaves in self.leaves
        )
        return ReplayColumns(
            observation=observation,
            action=arrays[self.action],
            log_prob=None if self.log_prob is None else arrays[self.log_prob],
            next_observation=next_observation,
            final_observation=final_observation,
            initial_state=None if self.initial_state is None else arrays[self.initial_state],
            previous_observation=previous_observation or None,
        )


class PartLayout:
    """The columns of a message whose header has been checked, and how to read them.

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
        for name, dtype in STEP_FIELDS.items():
            self._add(Where(name), getattr(proto, name), (n_steps, self.n_entries), 1, dtype)
        self._add(Where("final_index"), proto.final_index, (n_finals, 2), None, INT64)
        self._add(Where("policy_version"), proto.policy_version, (self.n_entries,), 0, INT64)
        number = {slot.where: number for number, slot in enumerate(self.slots)}
        names = (*ENTRY_FIELDS, *STEP_FIELDS, "final_index", "policy_version")
        self._fields = {name: number[Where(name)] for name in names}
        self._bools = [(name, self._fields[name]) for name, dtype in STEP_FIELDS.items() if dtype == _BOOL]
        self._substeps = [_NumberedColumns.of(substep.key, number) for substep in proto.substeps]
        # Parts of one batch have the same form.
        self.form = [(slot.where, slot.dtype, with_entries(slot, 0)) for slot in self.slots]
        # The body as one record, made once the body is known to be long enough: numpy returns the fields of a record in
        # a third of the time that it takes to make arrays one by one.
        self._record: np.dtype[Any] | None = None

    @property
    def is_reusable(self) -> bool:
        """True if it holds for every message with the same header: the header itself contains no values."""
        return all(slot.values is None or not slot.values.size for slot in self.slots)

    def read(self, body: memoryview) -> list[NDArray[Any]]:
        """Reads the message.

        Args:
            body: The deferred bytes, all of them.

        Returns:
            Its columns in the order of `slots`; views of `body` for deferred tensors.

        Raises:
            InvalidTensorError: The body has another size, or a bool is neither 0 nor 1.
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
            substeps={substep.key: substep.columns(arrays) for substep in self._substeps},
        )

    def _add_substep(self, proto: replay_pb2.SampleSubstep, step_shape: tuple[int, int], n_finals: int) -> None:
        def add_leaves(name: str, leading: tuple[int, ...], axis: int | None) -> None:
            for leaf in getattr(proto, name):
                self._add(Where(name, proto.key, leaf.path), leaf.tensor, leading, axis)

        add_leaves("observation", step_shape, 1)
        self._add(Where("action", proto.key), proto.action, step_shape, 1)
        add_leaves("next_observation", step_shape[1:], 0)
        if proto.HasField("log_prob"):
            self._add(Where("log_prob", proto.key), proto.log_prob, step_shape, 1, FLOAT32)
        add_leaves("final_observation", (n_finals,), None)
        if proto.HasField("initial_state"):
            state_size = proto.initial_state.shape[-1] if proto.initial_state.shape else 0
            self._add(Where("initial_state", proto.key), proto.initial_state, (step_shape[1], state_size), 0, FLOAT32)
        add_leaves("previous_observation", step_shape[1:], 0)

    def _add(
        self,
        where: Where,
        proto: tensor_pb2.Tensor,
        leading: tuple[int, ...],
        axis: int | None,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        """Notes the next tensor, of exactly `leading` and `dtype`; without a dtype its shape need only begin so."""
        what = f"leaf {where.path!r}" if where.field in LEAVES else where.field
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
        n_entries: The size of that batch.
    """
    axis = slot.axis or 0
    return (*slot.shape[:axis], 0 if slot.axis is None else n_entries, *slot.shape[axis + 1 :])


def _make_record(slots: list[Slot]) -> np.dtype[Any]:
    """Returns the dtype of the body as one record, with a field for every column, by the column's number."""
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
