"""Encodes batches of a replay buffer as messages, and splits large batches along B."""

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

# The limit on the arrays' bytes. The rest is for shapes, which are longer in a full message than in an empty message.
PART_BYTES: Final = MAX_MESSAGE_BYTES - (64 << 10)
# gRPC is fastest up to this size. Larger parts are for entries that do not fit.
FAST_PART_BYTES: Final = 1 << 20
# The number of message layouts that a stream caches.
MAX_KNOWN: Final = 64

INT64: Final = np.dtype("<i8")
FLOAT32: Final = np.dtype("<f4")
# The fields by entry, in the order of the message. They have the same names in the message and in the value.
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
    """The position of a column: a field of the batch, or a leaf of a substep's field."""

    field: str
    substep: str | None = None
    path: str = ""


class _Part(NamedTuple):
    """A message without its body, and the arrays of its body."""

    opened: bytes
    contents: list[NDArray[Any]]

    def serialize(self) -> bytes:
        """Returns the message with a copy of the arrays' current values."""
        return b"".join((self.opened, *self.contents))  # type: ignore[arg-type]  # arrays are buffers


class BatchEncoder:
    """Encodes the batches of one stream. Only one thread may use it.

    Args:
        deferred: True: put the tensors' bytes into the body, which copies them once. False: put them into the tensors,
            for readers with only protobuf.
    """

    def __init__(self, *, deferred: bool) -> None:
        self._deferred = deferred
        self._heads: dict[object, bytes] = {}
        # The last batch and its parts, if the parts are views of its arrays. A buffer gathers one batch after the other
        # into the same arrays.
        self._batch: ReplayBatch | None = None
        self._parts: list[_Part] = []

    def encode(self, batch: ReplayBatch) -> Iterator[bytes]:
        """Encodes a batch, and splits a large one along B.

        Args:
            batch: The batch, which is copied. If you encode the same object again with new values, the cost is little
                more than the copy.

        Yields:
            The batch's parts, serialised, in order.

        Raises:
            LimitExceededError: One entry is larger than a message.
        """
        if batch is self._batch:
            for known in self._parts:
                yield known.serialize()
            return
        pieces = _cut(batch)
        self._batch, self._parts = None, []
        shows_batch = self._deferred and not len(batch.final_index)  # final observations are selected, and so copied
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
    """Returns the batch, or slices of it that each fit into a message."""
    if batch.n_bytes <= min(PART_BYTES // 2, FAST_PART_BYTES):  # half of it remains for paths of any length
        return [batch]
    most = PART_BYTES - _to_proto(batch.entries(0, 0), 0, 1, deferred=False).ByteSize()
    entry_bytes = math.ceil(batch.n_bytes / batch.batch_size)
    n_entries = max(min(most, FAST_PART_BYTES) // entry_bytes, int(entry_bytes <= most))
    while n_entries:  # final observations differ in number, so take fewer entries until the largest part fits
        cuts = range(0, batch.batch_size, n_entries)
        pieces = [batch.entries(start, start + n_entries) for start in cuts]
        if max(piece.n_bytes for piece in pieces) <= most:
            return pieces
        n_entries //= 2
    raise LimitExceededError(
        f"an entry of the replay buffer has {entry_bytes} bytes; expected at most {most}, which fit into one message; "
        "store transitions, or sample shorter sequences"
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
