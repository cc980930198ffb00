"""Encodes batches of a replay buffer as messages, cut along B if they are large."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.services.columns.table import COLUMNS_BY_NAME, COMMON_COLUMNS
from rollcast.services.errors import LimitExceededError
from rollcast.services.limits.limits import MAX_MESSAGE_BYTES
from rollcast.services.replay.replay import ReplayBatch
from rollcast.services.wire.message_body import open_body
from rollcast.services.wire.tensors import fill_tensor, wire_array
from rollcast.v1 import replay_pb2

# For the arrays' bytes; the rest is for shapes, which are longer in a full message than in an empty one.
PART_BYTES: Final = MAX_MESSAGE_BYTES - (64 << 10)
# gRPC is fastest up to this size; larger parts are for entries that do not fit.
FAST_PART_BYTES: Final = 1 << 20
# Forms of messages that a stream remembers.
MAX_KNOWN: Final = 64

INT64: Final = np.dtype("<i8")
FLOAT32: Final = np.dtype("<f4")
# Fields of the message and of the value have the same name; both are in the order of the message.
ENTRY_FIELDS: Final[dict[str, np.dtype[Any]]] = {
    "keys": INT64,
    "weights": FLOAT32,
    "n_steps": INT64,
    "discount": FLOAT32,
}
# Columns by field of the message of a substep, in the order of the message.
_RENAMED: Final = {"next_observation": "last_observation"}
SUBSTEP_FIELDS: Final = {
    field.name: COLUMNS_BY_NAME[_RENAMED.get(field.name, field.name)]
    for field in replay_pb2.SampleSubstep.DESCRIPTOR.fields
    if field.name != "key"
}
TREES: Final = frozenset(field for field, column in SUBSTEP_FIELDS.items() if column.is_tree)


class Where(NamedTuple):
    """The place of a column: a field of the batch, or a leaf of a field of a substep."""

    field: str
    substep: str | None = None
    path: str = ""


class _Part(NamedTuple):
    """A message up to its body's first byte, and the arrays that are its body."""

    opened: bytes
    contents: list[NDArray[Any]]

    def serialize(self) -> bytes:
        """Returns the message with a copy of the arrays as they are now."""
        return b"".join((self.opened, *self.contents))  # type: ignore[arg-type]  # arrays are buffers


class BatchEncoder:
    """Encodes the batches of one stream. For one thread.

    Args:
        deferred: Put the tensors' bytes into the body, copied once. False: into the tensors, for readers with nothing
            but protobuf.
    """

    def __init__(self, *, deferred: bool) -> None:
        self._deferred = deferred
        self._heads: dict[object, bytes] = {}
        # The last batch and its parts, if these show its own arrays: a buffer gathers one batch after the other into
        # the same arrays.
        self._batch: ReplayBatch | None = None
        self._parts: list[_Part] = []

    def encode(self, batch: ReplayBatch) -> Iterator[bytes]:
        """Encodes a batch, cut along B if it is large.

        Args:
            batch: The batch, which is copied. Encoding the same one again, with other values in its arrays, costs
                little more than the copy.

        Yields:
            Its parts, serialised, in order.

        Raises:
            LimitExceededError: One entry is larger than a message.
        """
        if batch is self._batch:
            for known in self._parts:
                yield known.serialize()
            return
        pieces = _cut(batch)
        self._batch, self._parts = None, []
        shows_batch = self._deferred and not len(batch.final_index)  # final observations are picked, so copied
        for number, piece in enumerate(pieces):
            if not self._deferred:
                yield _to_proto(piece, number, len(pieces), deferred=False).SerializeToString()
                continue
            arrays = [(where, array, wire_array(array, what=where.field)) for where, array in _columns(piece)]
            shows_batch = shows_batch and all(array is on_wire for _, array, on_wire in arrays)
            part = self._open(piece, number, len(pieces), [(where, on_wire) for where, _, on_wire in arrays])
            self._parts = [*self._parts, part] if shows_batch else []
            yield part.serialize()
        if shows_batch:
            self._batch = batch

    def _open(self, piece: ReplayBatch, part: int, parts: int, arrays: list[tuple[Where, NDArray[Any]]]) -> _Part:
        form = (part, parts, piece.burn_in, *((where, array.shape, array.dtype) for where, array in arrays))
        contents = [array for _, array in arrays if array.size]
        opened = self._heads.get(form)
        if opened is None:
            head = _to_proto(piece, part, parts, deferred=True).SerializeToString()
            n_bytes = sum(array.nbytes for array in contents)
            opened = open_body(head, n_bytes) if n_bytes else head
            if len(self._heads) == MAX_KNOWN:
                self._heads.clear()
            self._heads[form] = opened
        return _Part(opened, contents)


def _cut(batch: ReplayBatch) -> Sequence[ReplayBatch]:
    """Returns the batch, or pieces of it that fit a message each."""
    if batch.n_bytes <= min(PART_BYTES // 2, FAST_PART_BYTES):  # with room for paths of any length
        return [batch]
    most = PART_BYTES - _to_proto(batch.entries(0, 0), 0, 1, deferred=False).ByteSize()
    entry_bytes = math.ceil(batch.n_bytes / batch.batch_size)
    n_entries = max(min(most, FAST_PART_BYTES) // entry_bytes, int(entry_bytes <= most))
    while n_entries:  # entries differ in their final observations: take fewer until the largest part fits
        cuts = range(0, batch.batch_size, n_entries)
        pieces = [batch.entries(start, start + n_entries) for start in cuts]
        if max(piece.n_bytes for piece in pieces) <= most:
            return pieces
        n_entries //= 2
    raise LimitExceededError(
        f"an entry of the replay buffer has {entry_bytes} bytes; expected at most {most}, which fit one message; keep "
        "transitions, or sample shorter sequences"
    )


def _columns(batch: ReplayBatch) -> Iterator[tuple[Where, NDArray[Any]]]:
    """Yields every column, in the order of the message's fields."""
    for name in ENTRY_FIELDS:
        yield Where(name), getattr(batch, name)
    for key, columns in batch.substeps.items():
        for field, column in SUBSTEP_FIELDS.items():
            for path, array in column.arrays(columns).items():
                yield Where(field, key, path), array
    for column in COMMON_COLUMNS:
        yield Where(column.name), getattr(batch, column.name)
    yield Where("policy_version"), batch.policy_version


def _to_proto(batch: ReplayBatch, part: int, parts: int, *, deferred: bool) -> replay_pb2.SampleResponse:
    proto = replay_pb2.SampleResponse(part=part, parts=parts, burn_in=batch.burn_in)
    substeps = {key: proto.substeps.add(key=key) for key in batch.substeps}
    for where, array in _columns(batch):
        field = getattr(proto if where.substep is None else substeps[where.substep], where.field)
        tensor = field.add(path=where.path).tensor if where.field in TREES else field
        fill_tensor(tensor, array, deferred=deferred and array.size > 0, what=where.field)
    return proto
