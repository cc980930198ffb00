"""A disk for the write-ahead log: slow, full, and without what was not synced when its machine fails."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.simulation.scheduler import Scheduler

# The size of a segment: so small that a log soon has several.
_SEGMENT_BYTES = 1500


class Disk:
    """The functions of `os` that the segments of a log use. The files are real, in memory.

    Attributes:
        sync_s: The time that it takes until what was written is safe.
        full_until: Until this time there is no room for another segment.
    """

    def __init__(self, sim: Scheduler) -> None:
        self._sim = sim
        self.sync_s = 0.001
        self.full_until = 0.0
        self._paths: dict[int, str] = {}
        # Writes that are lost if the machine fails: position and content before, by path, in the order of writing.
        self._unsynced: dict[str, list[tuple[int, bytes]]] = {}

    def as_os(self) -> Any:
        """Returns what stands in the place of the module `os`."""
        return SimpleNamespace(
            **{name: getattr(os, name) for name in ("O_WRONLY", "O_CREAT", "O_CLOEXEC", "fstat")},
            open=self._open,
            close=self._close,
            posix_fallocate=self._allocate,
            pwritev=self._write,
            ftruncate=self._truncate,
            fsync=self._sync,
            fdatasync=self._sync,
        )

    def end_process(self, *, loses_unsynced: bool) -> None:
        """Ends the process that writes: its files are closed, and its machine may have failed."""
        for file in self._paths:
            os.close(file)
        self._paths.clear()
        if loses_unsynced:
            for path, writes in self._unsynced.items():
                # The disk had written some of it on its own.
                n_kept = self._sim.choices.pick(len(writes) + 1)
                with Path(path).open("r+b") as content:
                    for position, before in reversed(writes[n_kept:]):
                        content.seek(position)
                        content.write(before)
        self._unsynced.clear()

    def _open(self, path: Any, flags: int, mode: int) -> int:
        file = os.open(path, flags, mode)
        self._paths[file] = str(path)
        return file

    def _close(self, file: int) -> None:
        if self._paths.pop(file, None) is not None:
            os.close(file)

    def _allocate(self, file: int, _start: int, n_bytes: int) -> None:
        self._sim.pause()
        if self.full_until > self._sim.now:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(file, min(n_bytes, _SEGMENT_BYTES))

    def _write(self, file: int, pieces: Sequence[Any], position: int) -> int:
        self._sim.pause()
        content = b"".join(bytes(piece) for piece in pieces)
        # A write may be cut short.
        content = content[: len(content) - self._sim.choices.pick(len(content))]
        path = self._paths[file]
        with Path(path).open("rb") as readable:
            readable.seek(position)
            before = readable.read(len(content))
        self._unsynced.setdefault(path, []).append((position, before.ljust(len(content), b"\0")))
        return os.pwrite(file, content, position)

    def _truncate(self, file: int, n_bytes: int) -> None:
        os.ftruncate(file, n_bytes)

    def _sync(self, file: int) -> None:
        path = self._paths[file]
        self._sim.sleep(self.sync_s)
        self._unsynced.pop(path, None)
