"""Decodes batches of a replay buffer: a single message as views of it, several parts as one copy."""

import math
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from rollcast.services.errors import InvalidTensorError
from rollcast.services.limits.limits import MAX_BATCH_BYTES
from rollcast.services.replay.batch_codec import MAX_KNOWN
from rollcast.services.replay.part_layout import PartLayout, with_entries
from rollcast.services.replay.replay import ReplayBatch
from rollcast.services.wire.message_body import split_body
from rollcast.v1 import replay_pb2


class BatchAssembler:
    """Assembles batches from their parts. Only one thread may use it.

    Args:
        batch_size: B, the requested number of entries; other batches are refused.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._known: dict[bytes, PartLayout] = {}
        # By part number, the beginning of the last such part, up to its body. The next one mostly begins with the same
        # bytes.
        self._latest: dict[int, tuple[bytes, PartLayout]] = {}
        self._n_parts = 0
        self._joined: _JoinedParts | None = None

    def add(self, serialized: bytes) -> ReplayBatch | None:
        """Takes the next part.

        Args:
            serialized: The message.

        Returns:
            The batch, with read-only arrays, if all its parts have arrived; otherwise None.

        Raises:
            InvalidTensorError: The message or a tensor is malformed, or the part is out of order. Or its form differs
                from the first part's, or the number of entries is wrong.
        """
        opened, layout = self._latest.get(self._n_parts, (b"", None))
        if layout is None or len(serialized) != len(opened) + layout.body_bytes or not serialized.startswith(opened):
            layout, body = self._read_head(serialized)
        else:
            body = memoryview(serialized)[len(opened) :]
        if layout.part != self._n_parts or layout.part >= layout.parts:
            raise InvalidTensorError(
                f"part {layout.part} of {layout.parts} of a batch arrived after {self._n_parts} parts; expected all, "
                "in order; sample again"
            )
        arrays = layout.read(body)
        if layout.parts == 1:
            _check_batch_size(layout.n_entries, self._batch_size)
            return layout.batch(arrays)
        if self._joined is None:
            self._joined = _JoinedParts(layout, self._batch_size)
        self._joined.add(layout, arrays)
        self._n_parts += 1
        if self._n_parts < layout.parts:
            return None
        joined, self._joined, self._n_parts = self._joined, None, 0
        return joined.batch()

    def _read_head(self, serialized: bytes) -> tuple["PartLayout", memoryview]:
        """Returns the layout of a part, cached or new, and its body."""
        head, body = split_body(serialized)
        if not body:
            proto = _parse(head)
            return PartLayout(proto), memoryview(proto.body)
        layout = self._known.get(head)
        if layout is None:
            layout = PartLayout(_parse(head))
            if layout.is_reusable:
                if len(self._known) == MAX_KNOWN:
                    self._known.clear()
                self._known[head] = layout
        elif len(body) == layout.body_bytes and layout.part < MAX_KNOWN:
            self._latest[layout.part] = serialized[: -len(body)], layout
        return layout, body


def _parse(serialized: bytes) -> replay_pb2.SampleResponse:
    try:
        return replay_pb2.SampleResponse.FromString(serialized)
    except DecodeError as error:
        raise InvalidTensorError(
            f"a part of a batch has {len(serialized)} bytes that do not parse ({error}); expected a "
            "rollcast.v1.SampleResponse; sample again"
        ) from error


def _check_batch_size(n_entries: int, batch_size: int) -> None:
    if n_entries != batch_size:
        raise InvalidTensorError(
            f"a batch has {n_entries} entries; expected {batch_size}, the requested number; sample again"
        )


class _JoinedParts:
    """A batch that grows part by part. Each part is copied on arrival, while gRPC receives the next part.

    Args:
        first: The first part's layout.
        batch_size: B, the entries to allocate.

    Raises:
        InvalidTensorError: The batch would exceed the size limit.
    """

    def __init__(self, first: PartLayout, batch_size: int) -> None:
        self._first = first
        self._batch_size = batch_size
        self._n_entries = 0
        shapes = [with_entries(slot, batch_size) for slot in first.slots]
        n_bytes = sum(math.prod(shape) * slot.dtype.itemsize for slot, shape in zip(first.slots, shapes, strict=True))
        if n_bytes > MAX_BATCH_BYTES:
            raise InvalidTensorError(
                f"a batch of {batch_size} entries has {n_bytes} bytes; expected at most {MAX_BATCH_BYTES}; request a "
                "smaller batch",
                limit="max_batch_bytes",
            )
        self._columns = [np.empty(shape, slot.dtype) for slot, shape in zip(first.slots, shapes, strict=True)]
        # The arrays of the columns without entries, one from each part.
        self._finals: dict[int, list[NDArray[Any]]] = {
            number: [] for number, slot in enumerate(first.slots) if slot.axis is None
        }

    def add(self, layout: PartLayout, arrays: list[NDArray[Any]]) -> None:
        """Copies a part.

        Args:
            layout: The part's layout.
            arrays: The part's columns.

        Raises:
            InvalidTensorError: The part's columns differ from the first part's, or it has too many entries.
        """
        if layout.form != self._first.form:
            raise InvalidTensorError(
                f"part {layout.part} of a batch has different columns or a different T than part 0; expected the same; "
                "sample again"
            )
        start, stop = self._n_entries, self._n_entries + layout.n_entries
        if stop > self._batch_size:
            _check_batch_size(stop, self._batch_size)
        for number, (slot, column, array) in enumerate(zip(layout.slots, self._columns, arrays, strict=True)):
            if slot.axis == 0:
                column[start:stop] = array
            elif slot.axis == 1:
                column[:, start:stop] = array
            elif slot.where.field == "final_index":
                self._finals[number].append(array + np.array([0, start]))
            elif len(array):
                self._finals[number].append(array)
        self._n_entries = stop

    def batch(self) -> ReplayBatch:
        """Returns the batch, after all parts have arrived.

        Raises:
            InvalidTensorError: The parts have too few entries.
        """
        _check_batch_size(self._n_entries, self._batch_size)
        for number, arrays in self._finals.items():
            if arrays:
                self._columns[number] = np.concatenate(arrays)
        for column in self._columns:
            column.flags.writeable = False
        return self._first.batch(self._columns)
