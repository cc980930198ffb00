"""Batches of a replay buffer as messages, whole or cut along B, and back."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from rollcast.v1 import replay_pb2, tensor_pb2

from services.channel import MAX_MESSAGE_BYTES
from services.errors import InvalidTensorError, LimitExceededError
from services.message_body import append_body, split_body
from services.replay import ReplayBatch, ReplayColumns, join_entries
from services.tensors import check_bools, fill_tensor, tensor_content, tensor_header, wire_array

# For the arrays' bytes; the rest is for shapes, which are longer in a message that is full than in an empty one.
PART_BYTES: Final = MAX_MESSAGE_BYTES - (64 << 10)
# gRPC is fastest up to here: larger parts are for entries that do not fit.
FAST_PART_BYTES: Final = 1 << 20
# Forms of messages that a stream remembers.
_MAX_KNOWN: Final = 64

_INT64: Final = np.dtype("<i8")
_FLOAT32: Final = np.dtype("<f4")
_BOOL: Final = np.dtype(np.bool_)
# By the fields of the message and of the value, which have one name; both in the order of the message.
_ENTRY_FIELDS: Final[dict[str, np.dtype[Any]]] = {
    "keys": _INT64,
    "weights": _FLOAT32,
    "n_steps": _INT64,
    "discount": _FLOAT32,
}
_STEP_FIELDS: Final[dict[str, np.dtype[Any]]] = {
    "reward": _FLOAT32,
    "terminated": _BOOL,
    "truncated": _BOOL,
    "valid": _BOOL,
}
_LEAVES: Final = ("observation", "next_observation", "final_observation")


class _Where(NamedTuple):
    """Where a column stands: a field of the batch, or a leaf of a field of a substep."""

    field: str
    substep: str | None = None
    path: str = ""


class BatchEncoder:
    """Encodes the batches of one stream. For one thread.

    Args:
        deferred: Put the tensors' bytes into the body, copied once; False: into the tensors, which anybody reads with
            protobuf alone.
    """

    def __init__(self, *, deferred: bool) -> None:
        self._deferred = deferred
        self._heads: dict[object, bytes] = {}

    def encode(self, batch: ReplayBatch) -> Iterator[bytes]:
        """Encodes a batch, cut along B where it is large.

        Args:
            batch: The batch; copied.

        Yields:
            Its parts, serialised, in order.

        Raises:
            LimitExceededError: One entry is above a message.
        """
        pieces = _cut(batch)
        for part, piece in enumerate(pieces):
            yield self._encode_part(piece, part, len(pieces))

    def _encode_part(self, piece: ReplayBatch, part: int, parts: int) -> bytes:
        if not self._deferred:
            return _to_proto(piece, part, parts, deferred=False).SerializeToString()
        arrays = [(where, wire_array(array, what=where.field)) for where, array in _columns(piece)]
        form = (part, parts, piece.burn_in, *((where, array.shape, array.dtype) for where, array in arrays))
        head = self._heads.get(form)
        if head is None:
            if len(self._heads) == _MAX_KNOWN:
                self._heads.clear()
            head = self._heads[form] = _to_proto(piece, part, parts, deferred=True).SerializeToString()
        contents = [array for _, array in arrays if array.size]
        return append_body(head, contents, sum(array.nbytes for array in contents))


class BatchAssembler:
    """Puts the parts of batches together again. For one thread."""

    def __init__(self) -> None:
        self._parts: list[ReplayBatch] = []
        self._known: dict[bytes, _PartLayout] = {}

    def add(self, serialized: bytes) -> ReplayBatch | None:
        """Takes the next part.

        Args:
            serialized: The message.

        Returns:
            The batch, when all its parts are there. Its arrays are read-only.

        Raises:
            InvalidTensorError: The message or a tensor is malformed, or the part is not the next one.
        """
        head, body = split_body(serialized)
        layout = self._known.get(head)
        if layout is None:
            proto = _parse(head)
            body = body or memoryview(proto.body)
            layout = _PartLayout(proto)
            if layout.is_reusable and body:
                if len(self._known) == _MAX_KNOWN:
                    self._known.clear()
                self._known[head] = layout
        if layout.part != len(self._parts) or layout.part >= layout.parts:
            raise InvalidTensorError(
                f"part {layout.part} of {layout.parts} of a batch came after {len(self._parts)} parts; expected all, "
                "in order; sample again"
            )
        self._parts.append(layout.read(body))
        if len(self._parts) < layout.parts:
            return None
        parts, self._parts = self._parts, []
        return join_entries(parts)


def _parse(serialized: bytes) -> replay_pb2.SampleResponse:
    try:
        return replay_pb2.SampleResponse.FromString(serialized)
    except DecodeError as error:
        raise InvalidTensorError(
            f"a part of a batch has {len(serialized)} bytes that do not parse ({error}); expected a "
            "rollcast.v1.SampleResponse; sample again"
        ) from error


def _cut(batch: ReplayBatch) -> Sequence[ReplayBatch]:
    """The batch, or what of it fits a message each."""
    if batch.n_bytes <= min(PART_BYTES // 2, FAST_PART_BYTES):  # whatever its paths are called, there is room for them
        return [batch]
    most = PART_BYTES - _to_proto(batch.entries(0, 0), 0, 1, deferred=False).ByteSize()
    entry_bytes = math.ceil(batch.n_bytes / batch.batch_size)
    n_entries = max(min(most, FAST_PART_BYTES) // entry_bytes, int(entry_bytes <= most))
    while n_entries:  # entries may differ in their final observations: fewer a part, until the largest part fits
        cuts = range(0, batch.batch_size, n_entries)
        pieces = [batch.entries(start, start + n_entries) for start in cuts]
        if max(piece.n_bytes for piece in pieces) <= most:
            return pieces
        n_entries //= 2
    raise LimitExceededError(
        f"an entry of the replay buffer has {entry_bytes} bytes; expected at most {most}, which fit one message; keep "
        "transitions, or sample shorter sequences"
    )


def _columns(batch: ReplayBatch) -> Iterator[tuple[_Where, NDArray[Any]]]:
    """Every column, in the order of the fields of the message."""
    for name in _ENTRY_FIELDS:
        yield _Where(name), getattr(batch, name)
    for key, columns in batch.substeps.items():
        for path, array in columns.observation.items():
            yield _Where("observation", key, path), array
        yield _Where("action", key), columns.action
        for path, array in columns.next_observation.items():
            yield _Where("next_observation", key, path), array
        if columns.log_prob is not None:
            yield _Where("log_prob", key), columns.log_prob
        for path, array in columns.final_observation.items():
            yield _Where("final_observation", key, path), array
    for name in (*_STEP_FIELDS, "final_index", "policy_version"):
        yield _Where(name), getattr(batch, name)


def _to_proto(batch: ReplayBatch, part: int, parts: int, *, deferred: bool) -> replay_pb2.SampleResponse:
    proto = replay_pb2.SampleResponse(part=part, parts=parts, burn_in=batch.burn_in)
    substeps = {key: proto.substeps.add(key=key) for key in batch.substeps}
    for where, array in _columns(batch):
        field = getattr(proto if where.substep is None else substeps[where.substep], where.field)
        tensor = field.add(path=where.path).tensor if where.field in _LEAVES else field
        fill_tensor(tensor, array, deferred=deferred and array.size > 0, what=where.field)
    return proto


class _Slot(NamedTuple):
    """A column of a message: where its bytes begin in the body, or its values where they are not deferred."""

    where: _Where
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    values: NDArray[Any] | None


class _PartLayout:
    """What a message holds, its header checked, and how to read it.

    Args:
        proto: The message.

    Raises:
        InvalidTensorError: A tensor has another dtype or shape than it should.
    """

    def __init__(self, proto: replay_pb2.SampleResponse) -> None:
        self.part, self.parts, self._burn_in = proto.part, proto.parts, proto.burn_in
        self._slots: list[_Slot] = []
        self._n_deferred_bytes = 0
        if len(proto.reward.shape) != 2:
            raise InvalidTensorError(f"the reward has shape {list(proto.reward.shape)}; expected [T, B]; sample again")
        n_steps, n_entries = proto.reward.shape
        n_finals = proto.final_index.shape[0] if proto.final_index.shape else 0
        for name, dtype in _ENTRY_FIELDS.items():
            self._add(_Where(name), getattr(proto, name), (n_entries,), dtype)
        for substep in proto.substeps:
            self._add_substep(substep, (n_steps, n_entries), n_finals)
        for name, dtype in _STEP_FIELDS.items():
            self._add(_Where(name), getattr(proto, name), (n_steps, n_entries), dtype)
        self._add(_Where("final_index"), proto.final_index, (n_finals, 2), _INT64)
        self._add(_Where("policy_version"), proto.policy_version, (n_entries,), _INT64)
        self._keys = [substep.key for substep in proto.substeps]

    @property
    def is_reusable(self) -> bool:
        """Whether it holds for every message with the same header: no values are in the header itself."""
        return all(slot.values is None or not slot.values.size for slot in self._slots)

    def read(self, body: memoryview) -> ReplayBatch:
        """Reads the message.

        Args:
            body: The deferred bytes, all of them.

        Returns:
            The batch, views of `body` where tensors were deferred.

        Raises:
            InvalidTensorError: The body has another size, or a bool is neither 0 nor 1.
        """
        if len(body) != self._n_deferred_bytes:
            raise InvalidTensorError(
                f"a part of a batch has a body of {len(body)} bytes; expected {self._n_deferred_bytes}, which its "
                "deferred tensors have; sample again"
            )
        arrays = {
            where: np.ndarray(shape, dtype, body, offset) if values is None else values
            for where, dtype, shape, offset, values in self._slots
        }
        for name in _STEP_FIELDS:
            if (array := arrays[_Where(name)]).dtype == _BOOL:
                check_bools(array, what=name)
        leaves: dict[tuple[str | None, str], dict[str, NDArray[Any]]] = {}
        for where, array in arrays.items():
            if where.field in _LEAVES:
                leaves.setdefault((where.substep, where.field), {})[where.path] = array
        return ReplayBatch(
            **{name: arrays[_Where(name)] for name in (*_ENTRY_FIELDS, *_STEP_FIELDS)},
            final_index=arrays[_Where("final_index")],
            policy_version=arrays[_Where("policy_version")],
            burn_in=self._burn_in,
            substeps={
                key: ReplayColumns(
                    action=arrays[_Where("action", key)],
                    log_prob=arrays.get(_Where("log_prob", key)),
                    **{name: leaves.get((key, name), {}) for name in _LEAVES},
                )
                for key in self._keys
            },
        )

    def _add_substep(self, proto: replay_pb2.SampleSubstep, step_shape: tuple[int, int], n_finals: int) -> None:
        def add_leaves(name: str, leading: tuple[int, ...]) -> None:
            for leaf in getattr(proto, name):
                self._add(_Where(name, proto.key, leaf.path), leaf.tensor, leading)

        add_leaves("observation", step_shape)
        self._add(_Where("action", proto.key), proto.action, step_shape)
        add_leaves("next_observation", step_shape[1:])
        if proto.HasField("log_prob"):
            self._add(_Where("log_prob", proto.key), proto.log_prob, step_shape, _FLOAT32)
        add_leaves("final_observation", (n_finals,))

    def _add(
        self, where: _Where, proto: tensor_pb2.Tensor, leading: tuple[int, ...], dtype: np.dtype[Any] | None = None
    ) -> None:
        """Notes the next tensor: of exactly the shape `leading` and a dtype; without one, a shape that begins so."""
        what = f"leaf {where.path!r}" if where.field in _LEAVES else where.field
        dtype, shape, n_bytes = tensor_header(proto, dtype=dtype, shape=leading if dtype else None, what=what)
        if shape[: len(leading)] != leading:
            raise InvalidTensorError(
                f"{what} has shape {list(shape)}; expected it to begin with {list(leading)}; sample again"
            )
        if proto.deferred:
            self._slots.append(_Slot(where, dtype, shape, self._n_deferred_bytes, None))
            self._n_deferred_bytes += n_bytes
        else:
            self._slots.append(_Slot(where, dtype, shape, 0, tensor_content(proto, dtype, shape, n_bytes, what=what)))
