"""Names and writes the files of the write-ahead log, which are removed or reused after a checkpoint.

    NUMBER-MARKER.log    a head that describes the rollouts, then records: see `rollcast.learner.durable.records`
    NUMBER.spare         a file that a checkpoint covers: its blocks are allocated, so that writes are cheap

The bytes after the last record come from an earlier use, or are zero.
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

from rollcast.learner.disk import sync
from rollcast.learner.durable.records import N_MARKER, Chunk
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
# The largest number of chunks in one call: Linux accepts 1024.
_MAX_CHUNKS: Final = 1024


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The name of a segment.

    Attributes:
        number: The number of the segment, from 1; later segments have later records.
        marker: The first bytes of the segment's records.
    """

    number: int
    marker: bytes

    @classmethod
    def new(cls, number: int) -> "SegmentName":
        """Makes a name with a new random marker."""
        return cls(number, secrets.token_bytes(N_MARKER))

    @classmethod
    def parse(cls, path: Path) -> "SegmentName | None":
        """Parses the name of a file; returns None if it is not a segment."""
        number, _, marker = path.name.removesuffix(_SUFFIX).partition("-")
        if not path.name.endswith(_SUFFIX) or not number.isdecimal() or len(marker) != 2 * N_MARKER:
            return None
        try:
            return cls(int(number), bytes.fromhex(marker))
        except ValueError:
            return None

    def path(self, folder: Path) -> Path:
        """Returns the path of the segment."""
        return folder / f"{self.number:010d}-{self.marker.hex()}{_SUFFIX}"

    def spare_path(self, folder: Path) -> Path:
        """Returns the path of the file as a spare file."""
        return folder / f"{self.number:010d}{_SPARE_SUFFIX}"


def segment_names(folder: Path) -> list[SegmentName]:
    """Lists the segments in a folder, oldest first."""
    return sorted(name for path in folder.glob(f"*{_SUFFIX}") if (name := SegmentName.parse(path)) is not None)


def spare_paths(folder: Path) -> list[Path]:
    """Lists the spare files in a folder."""
    return sorted(folder.glob(f"*{_SPARE_SUFFIX}"))


def encode_segment_head(header: RecordingHeader) -> bytes:
    """Encodes the head of a segment: magic (16), format (4), size (4), digest (8), and a RecordingHeader."""
    content = encode_recording_header(header)
    digest = xxhash.xxh3_64_intdigest(struct.pack("<II", FORMAT, len(content)) + content)
    return _HEAD.pack(_MAGIC, FORMAT, len(content), digest) + content


def decode_segment_head(content: bytes) -> tuple[RecordingHeader, int]:
    """Decodes the head of a segment.

    Args:
        content: The first bytes of a file.

    Returns:
        The description of its rollouts, and the position of the first record.

    Raises:
        RecordingError: The head is damaged, or has another format.
        ProtocolMismatchError: The head follows another version of the protocol.
        InvalidInputError: The spaces are not supported.
    """
    if len(content) < _HEAD.size or not content.startswith(_MAGIC):
        raise RecordingError("it does not begin like a segment of a write-ahead log; expected a file of rollcast")
    _, version, n_header, digest = _HEAD.unpack_from(content)
    if version != FORMAT:
        raise RecordingError(
            f"its format is {version}; expected {FORMAT}; resume with the version of rollcast that wrote it"
        )
    end = _HEAD.size + n_header
    header = content[_HEAD.size : end]
    if n_header > MAX_HEADER_BYTES or len(header) < n_header:
        raise RecordingError(f"its header of {n_header} bytes is cut off; expected a whole header; the file is damaged")
    if xxhash.xxh3_64_intdigest(struct.pack("<II", version, n_header) + header) != digest:
        raise RecordingError("its header does not match its digest; expected an unchanged header; the file is damaged")
    return decode_recording_header(header), end


class SegmentWriter:
    """A writer of one segment. For one thread.

    Invariant: the file has its full size from the start. So a full disk causes an error at the file's creation, not
    within a record. After an error, no more bytes are written.

    Args:
        folder: The folder of the log.
        name: The name of the segment.
        head: The first bytes of the segment.
        n_bytes: The size of the file.
        spare: A file of at least that size to reuse; None: make a new one.

    Raises:
        OSError: The disk has no room.
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
            sync(folder)
        except OSError:
            os.close(self._file)
            with contextlib.suppress(OSError):
                self.path.unlink()
            raise
        # All bytes before this position are on the disk.
        self.n_committed = self.n_written

    def write(self, pieces: Sequence[Chunk]) -> None:
        """Writes chunks in order. Only `commit` makes sure that they are on the disk.

        Raises:
            OSError: The chunks cannot be written.
        """
        left = [memoryview(piece) for piece in pieces if len(piece)]
        while left:
            n_bytes = os.pwritev(self._file, left[:_MAX_CHUNKS], self.n_written)
            self.n_written += n_bytes
            while left and n_bytes >= len(left[0]):
                n_bytes -= len(left.pop(0))
            if n_bytes:
                left[0] = left[0][n_bytes:]

    def commit(self) -> None:
        """Waits until all written bytes are on the disk.

        Raises:
            OSError: The disk has failed, and may have stored any part of the bytes.
        """
        os.fdatasync(self._file)
        self.n_committed = self.n_written

    def close(self) -> None:
        """Ends writing."""
        os.close(self._file)

    def abandon(self) -> None:
        """Ends writing after an error, and cuts off the uncommitted part if possible."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self.n_committed)
        with contextlib.suppress(OSError):
            os.close(self._file)
