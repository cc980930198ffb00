"""Manages a log's segments: begins segments, removes covered segments, and reuses their files."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollcast.learner.disk import FULL_DISK, free_bytes
from rollcast.learner.durable.coverage import Coverage
from rollcast.learner.durable.segments import SegmentName, SegmentWriter, spare_paths

logger = logging.getLogger(__name__)

# A segment takes at most this share of the disk's free bytes, so that checkpoints and metrics have room beside it;
_SHARE_OF_FREE: Final = 1 / 8
# but segments may always be this large.
_SMALL_SEGMENT_BYTES: Final = 1 << 20


@dataclass(slots=True, kw_only=True)
class KnownSegment:
    """A segment in the folder, with the range of its rollouts' numbers.

    Attributes:
        name: The name of the segment.
        n_bytes: The size of the file.
        first: The lowest number of a rollout in the segment; above `last` if the segment is empty.
        last: The highest number of a rollout in the segment.
    """

    name: SegmentName
    n_bytes: int
    first: int = 1
    last: int = 0

    def add(self, number: int) -> None:
        """Records the number of another rollout in the segment."""
        self.first = min(self.first, number) if self.first <= self.last else number
        self.last = max(self.last, number)

    def is_in(self, coverage: Coverage) -> bool:
        """Returns True if a checkpoint covers all rollouts of the segment."""
        return self.last < self.first or coverage.has(self.first, self.last)


class SegmentFiles:
    """The segments and spare files in a log's folder.

    Invariant: segments and spare files together take at most `spare_bytes`, or there are no spare files. One thread at
    a time calls `begin`, `note` and `end`; any thread may call the other methods.

    Args:
        folder: The folder of the log.
        head: The first bytes of each segment.
        segments: The segments in the folder, oldest first.
        segment_bytes: Size of a segment, unless a rollout is larger or the disk has too little room.
        spare_bytes: The limit for spare files to reuse, in bytes, including the segments.
    """

    def __init__(
        self,
        folder: Path,
        head: bytes,
        segments: Sequence[KnownSegment],
        *,
        segment_bytes: int,
        spare_bytes: int,
    ) -> None:
        self._folder = folder
        self._head = head
        self._segment_bytes = segment_bytes
        self._spare_bytes = spare_bytes
        self._lock = threading.Lock()  # guards those below
        self._segments = list(segments)
        self._spares = spare_paths(folder)
        self._last_number = max((segment.name.number for segment in segments), default=0)
        self._current: KnownSegment | None = None

    @property
    def n_bytes(self) -> int:
        """The bytes of the segments, without spare files."""
        with self._lock:
            return sum(segment.n_bytes for segment in self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def begin(self, n_bytes: int) -> SegmentWriter:
        """Begins a segment with room for a record of `n_bytes`.

        Raises:
            OSError: The disk has no room for the segment.
        """
        n_needed = self.bytes_needed(n_bytes)
        with self._lock:
            spare = self._spares.pop() if self._spares and n_needed <= self._segment_bytes else None
            name = SegmentName.new(self._last_number + 1)
        writer = self._make_segment(name, n_needed, spare)
        with self._lock:
            self._last_number = name.number
            self._current = KnownSegment(name=name, n_bytes=writer.n_bytes)
            self._segments.append(self._current)
        return writer

    def bytes_needed(self, n_bytes: int) -> int:
        """Returns the size of the smallest segment with room for a record of `n_bytes`."""
        return len(self._head) + n_bytes

    def _make_segment(self, name: SegmentName, n_needed: int, spare: Path | None) -> SegmentWriter:
        """Makes a segment of the usual size, or as large as the disk allows.

        Raises:
            OSError: The disk has no room for `n_needed` bytes.
        """
        n_bytes = self._segment_bytes
        free = free_bytes(self._folder)
        if free is not None:
            n_bytes = min(n_bytes, max(int(free * _SHARE_OF_FREE), _SMALL_SEGMENT_BYTES))
        while True:
            n_bytes = max(n_bytes, n_needed)
            try:
                return SegmentWriter(self._folder, name, self._head, n_bytes, spare)
            except OSError as error:
                # with a quota, less may be allowed than is free, so try half the size
                if error.errno not in FULL_DISK or spare is not None or n_bytes == n_needed:
                    raise
                n_bytes //= 2

    def note(self, number: int) -> None:
        """Records that the current segment gets this rollout."""
        with self._lock:
            assert self._current is not None, "begin() comes first"
            self._current.add(number)

    def end(self) -> None:
        """Records that the current segment is complete."""
        with self._lock:
            self._current = None

    def remove(self, coverage: Coverage) -> None:
        """Removes the segments that a checkpoint covers, except for the current one."""
        with self._lock:
            removed = [
                segment for segment in self._segments if segment is not self._current and segment.is_in(coverage)
            ]
            self._segments = [segment for segment in self._segments if segment not in removed]
            n_bytes = sum(segment.n_bytes for segment in self._segments) + len(self._spares) * self._segment_bytes
        spares: list[Path] = []
        for segment in removed:
            path = segment.name.path(self._folder)
            keeps = n_bytes + segment.n_bytes <= self._spare_bytes
            try:
                if keeps and segment.n_bytes == self._segment_bytes == path.stat().st_size:
                    spares.append(path.rename(segment.name.spare_path(self._folder)))
                    n_bytes += segment.n_bytes
                else:
                    path.unlink()
            except OSError as error:
                logger.warning("a segment of the write-ahead log cannot be removed: %s: %s", path, error.strerror)
        with self._lock:
            self._spares += spares
