"""Reads segments of the write-ahead log, which may be cut off anywhere or damaged."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import xxhash

from rollcast.learner.durable.records import HEAD, MAX_ENTRY_BYTES, TAIL, RecordHead, decode_head, decode_tail, inverted
from rollcast.learner.durable.segments import SegmentName, decode_segment_head
from rollcast.services.errors import RollcastError
from rollcast.services.rollouts.recording_codec import MAX_HEADER_BYTES, RecordingHeader

_LOOK_BYTES: Final = 4096
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """Bytes that should be a record but are no complete record.

    Attributes:
        start: The position of the first byte in the file.
        stop: The position after the last byte.
        what: A description of the problem.
        is_torn: True if the process or the machine stopped during the write: no bytes follow, and the rollout was not
            acknowledged. False if the file was damaged later.
    """

    start: int
    stop: int
    what: str
    is_torn: bool


class SegmentReader:
    """A reader of one segment. For one thread.

    Invariant: no memory is allocated for a record before its sizes match their digest and fit the file.

    Args:
        folder: The folder of the log.
        name: The name of the segment.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, folder: Path, name: SegmentName) -> None:
        self.path = name.path(folder)
        self._marker = name.marker
        self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self.n_bytes = os.fstat(self._file).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._file)

    def header(self) -> RecordingHeader:
        """Reads the description of the segment's rollouts.

        Raises:
            RecordingError: The head is damaged, or has another format.
            ProtocolMismatchError: The head follows another version of the protocol.
            InvalidInputError: The spaces are not supported.
        """
        return decode_segment_head(self._read(0, _LOOK_BYTES + MAX_HEADER_BYTES))[0]

    def scan(self, *, verify: bool) -> Iterator[RecordHead | Flaw]:
        """Finds records and flaws, from the start of the file.

        Args:
            verify: True: reads rollouts, too. False: reads only heads and tails; `payload` checks rollouts later.

        Yields:
            Complete records, and flaws.

        Raises:
            OSError: The disk has failed.
        """
        try:
            position = decode_segment_head(self._read(0, _LOOK_BYTES + MAX_HEADER_BYTES))[1]
        except RollcastError as error:
            first = self._find_head(0)
            if first is None and self._find_tail(0) is None:
                yield Flaw(start=0, stop=self.n_bytes, what=f"its first bytes: {error}", is_torn=True)
                return
            position = 0 if first is None else first.start
            yield Flaw(start=0, stop=position, what=f"its first bytes: {error}", is_torn=False)
        while (found := self._next(position, verify=verify)) is not None:
            record, flaw = found
            if record is not None:
                yield record
            if flaw is not None:
                yield flaw
            position = flaw.stop if flaw is not None else record.end if record is not None else self.n_bytes

    def payload(self, record: RecordHead) -> tuple[bytes, memoryview] | None:
        """Reads a rollout.

        Returns:
            The serialised header, and the tensors' bytes; None if they do not match their digest.

        Raises:
            OSError: The disk has failed.
        """
        content = self._read(record.payload_start, record.n_head + record.n_body)
        if len(content) < record.n_head + record.n_body or xxhash.xxh3_64_intdigest(content) != record.payload_digest:
            return None
        return content[: record.n_head], memoryview(content)[record.n_head :]

    def _next(self, position: int, *, verify: bool) -> tuple[RecordHead | None, Flaw | None] | None:
        """Reads at a position: a record, a flaw, or a record with a damaged tail; None at the end of the data."""
        record = self._head_at(position)
        if record is None:
            return self._without_head(position)
        if record.tail_start > self.n_bytes:
            flaw = Flaw(
                start=position,
                stop=self.n_bytes,
                what=f"{_name(record)} is cut off by the end of the file",
                is_torn=True,
            )
            return None, flaw
        has_tail = decode_tail(self._marker, self._read(record.tail_start, TAIL.size)) == record.tail_start - position
        if has_tail and not verify:
            return record, None
        if self.payload(record) is None:
            following = self._head_at(record.end) or self._find_head(record.end)
            is_torn = not has_tail and following is None
            what = f"{_name(record)} was not written to its end" if is_torn else f"{_name(record)} is damaged"
            return None, Flaw(start=position, stop=min(record.end, self.n_bytes), what=what, is_torn=is_torn)
        if has_tail or self._head_at(record.end) is None:
            # whole: the crash came before its tail was written, or it is the last and only its tail is damaged
            return record, None
        return record, Flaw(
            start=record.tail_start, stop=record.end, what=f"the tail of {_name(record)} is damaged", is_torn=False
        )

    def _without_head(self, position: int) -> tuple[None, Flaw] | None:
        """Reads a position without a head: a damaged head if a record or a tail follows; else the end of the data."""
        following = self._find_head(position)
        if following is not None:
            return None, Flaw(
                start=position, stop=following.start, what="the head of a record is damaged", is_torn=False
            )
        end = self._find_tail(position)
        if end is not None:
            return None, Flaw(start=position, stop=end, what="the head of the last record is damaged", is_torn=False)
        return None

    def _head_at(self, position: int) -> RecordHead | None:
        content = self._read(position, _LOOK_BYTES)
        if len(content) < HEAD.size or not content.startswith(self._marker):
            return None
        n_bytes = HEAD.size + HEAD.unpack_from(content)[1]
        if len(content) < n_bytes <= HEAD.size + MAX_ENTRY_BYTES:
            content = self._read(position, n_bytes)
        return decode_head(self._marker, content, position)

    def _find_head(self, position: int) -> RecordHead | None:
        """Finds the first complete head from a position on."""
        heads = (self._head_at(found) for found in self._find(self._marker, position))
        return next((record for record in heads if record is not None), None)

    def _find_tail(self, position: int) -> int | None:
        """Finds the end of the last complete tail from a position on; without a head, all before it is one flaw."""
        end = None
        for found in self._find(inverted(self._marker), position):
            if decode_tail(self._marker, self._read(found, TAIL.size)) is not None:
                end = found + TAIL.size
        return end

    def _find(self, wanted: bytes, position: int) -> Iterator[int]:
        """Yields every position of these bytes from a position on, and reads the file once."""
        while content := self._read(position, _READ_BYTES):
            index = content.find(wanted)
            while index >= 0:
                yield position + index
                index = content.find(wanted, index + 1)
            if len(content) < _READ_BYTES:
                return
            position += len(content) - len(wanted) + 1

    def _read(self, position: int, n_bytes: int) -> bytes:
        """Reads `n_bytes`; fewer at the end of the file."""
        pieces = []
        while n_bytes > 0 and (piece := os.pread(self._file, n_bytes, position)):
            pieces.append(piece)
            position += len(piece)
            n_bytes -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _name(record: RecordHead) -> str:
    entry = record.entry
    return f"rollout {entry.sequence} of actor {entry.actor_id!r}, incarnation {entry.incarnation}"
