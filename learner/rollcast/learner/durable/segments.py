"""The files of the write-ahead log: each is written from the front, then read, then removed or used again.

    NUMBER-MARKER.log    a head: what the rollouts look like; then records, see `rollcast.learner.durable.records`
    NUMBER.spare         one that a checkpoint covers: its blocks are on the disk, so that writing there is cheap

What lies behind the last record is of an earlier use, or zero.
"""

import contextlib
import os
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from rollcast.learner.durable.records import N_MARKER, Piece
from rollcast.services.errors import RecordingError
from rollcast.services.rollouts.recording_codec import (
    MAX_HEADER_BYTES,
    RecordingHeader,
    decode_recording_header,
    encode_recording_header,
)

FORMAT: Final = 1
_MAGIC: Final = b"rollcast-log\r\n\x1a\n"
_HEAD: Final = struct.Struct("<16sIIQ")
_SUFFIX: Final = ".log"
_SPARE_SUFFIX: Final = ".spare"
# What one call writes at most: Linux takes 1024.
_MAX_PIECES: Final = 1024


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """What a segment's file is called.

    Attributes:
        number: Of the segment, from 1; later ones have later records.
        marker: What its records begin with.
    """

    number: int
    marker: bytes

    @classmethod
    def new(cls, number: int) -> "SegmentName":
        """A segment that has not been there."""
        return cls(number, secrets.token_bytes(N_MARKER))

    @classmethod
    def parse(cls, path: Path) -> "SegmentName | None":
        """The name of a file; None: it is no segment."""
        number, _, marker = path.name.removesuffix(_SUFFIX).partition("-")
        if not path.name.endswith(_SUFFIX) or not number.isdecimal() or len(marker) != 2 * N_MARKER:
            return None
        try:
            return cls(int(number), bytes.fromhex(marker))
        except ValueError:
            return None

    def path(self, folder: Path) -> Path:
        """Where it is."""
        return folder / f"{self.number:010d}-{self.marker.hex()}{_SUFFIX}"

    def spare_path(self, folder: Path) -> Path:
        """Where it is when it is spare."""
        return folder / f"{self.number:010d}{_SPARE_SUFFIX}"


def segment_names(folder: Path) -> list[SegmentName]:
    """The segments in a folder, oldest first."""
    return sorted(name for path in folder.glob(f"*{_SUFFIX}") if (name := SegmentName.parse(path)) is not None)


def spare_paths(folder: Path) -> list[Path]:
    """The spare files in a folder."""
    return sorted(folder.glob(f"*{_SPARE_SUFFIX}"))


def encode_segment_head(header: RecordingHeader) -> bytes:
    """What a segment begins with: magic (16), format (4), size (4), digest (8), and a RecordingHeader."""
    content = encode_recording_header(header)
    digest = xxhash.xxh3_64_intdigest(struct.pack("<II", FORMAT, len(content)) + content)
    return _HEAD.pack(_MAGIC, FORMAT, len(content), digest) + content


def decode_segment_head(content: bytes) -> tuple[RecordingHeader, int]:
    """Reads what a segment begins with.

    Args:
        content: The first bytes of a file.

    Returns:
        What its rollouts look like; and where the first record is.

    Raises:
        RecordingError: It is damaged, or of another format.
        ProtocolMismatchError: It follows another version of the protocol.
        InvalidInputError: Its spaces are not supported.
    """
    if len(content) < _HEAD.size or not content.startswith(_MAGIC):
        raise RecordingError("it does not begin as a segment of a write-ahead log does; expected what rollcast wrote")
    _, version, n_header, digest = _HEAD.unpack_from(content)
    if version != FORMAT:
        raise RecordingError(
            f"its format is {version}; expected {FORMAT}; resume with the version of rollcast that wrote it"
        )
    end = _HEAD.size + n_header
    header = content[_HEAD.size : end]
    if n_header > MAX_HEADER_BYTES or len(header) < n_header:
        raise RecordingError(f"its header of {n_header} bytes is not whole; expected all of it; it is damaged")
    if xxhash.xxh3_64_intdigest(struct.pack("<II", version, n_header) + header) != digest:
        raise RecordingError("its header is not as it was written; expected its digest; it is damaged")
    return decode_recording_header(header), end


class SegmentWriter:
    """Writes one segment. Used by one thread.

    Invariant: the file has its whole size from the start, so a full disk is noticed when it is made, and not in the
    middle of a record. After an error it is written to no more.

    Args:
        folder: Where.
        name: Which.
        head: What it begins with.
        n_bytes: How large.
        spare: A file to use again, of that size at least; None: a new one.

    Raises:
        OSError: There is no room.
    """

    def __init__(self, folder: Path, name: SegmentName, head: bytes, n_bytes: int, spare: Path | None) -> None:
        self.path = name.path(folder)
        self.name = name
        if spare is not None:
            spare.rename(self.path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.n_written = 0
        try:
            if spare is None:
                os.posix_fallocate(self._file, 0, n_bytes)
            self.n_bytes = os.fstat(self._file).st_size
            self.write([head])
            os.fsync(self._file)
            sync_folder(folder)
        except OSError:
            os.close(self._file)
            with contextlib.suppress(OSError):
                self.path.unlink()
            raise
        # Up to here all is on the disk.
        self.n_committed = self.n_written

    def write(self, pieces: Sequence[Piece]) -> None:
        """Writes pieces one after the other; they are on the disk after `commit`.

        Raises:
            OSError: They cannot be written.
        """
        left = [memoryview(piece) for piece in pieces if len(piece)]
        while left:
            n_bytes = os.pwritev(self._file, left[:_MAX_PIECES], self.n_written)
            self.n_written += n_bytes
            while left and n_bytes >= len(left[0]):
                n_bytes -= len(left.pop(0))
            if n_bytes:
                left[0] = left[0][n_bytes:]

    def commit(self) -> None:
        """Returns when everything that was written is on the disk.

        Raises:
            OSError: The disk has failed; nothing says what of it is there.
        """
        os.fdatasync(self._file)
        self.n_committed = self.n_written

    def close(self) -> None:
        """Ends writing."""
        os.close(self._file)

    def abandon(self) -> None:
        """Ends writing after an error, and cuts off what was not committed, where that can be done."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self.n_committed)
        with contextlib.suppress(OSError):
            os.close(self._file)


def sync_folder(folder: Path) -> None:
    """Returns when the names in a folder are on the disk.

    Raises:
        OSError: The disk has failed.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
