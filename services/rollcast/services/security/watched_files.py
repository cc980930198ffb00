"""Detects that files have been replaced since they were read."""

import os
from collections.abc import Iterable
from pathlib import Path


class WatchedFiles:
    """Detects changes of files by their inodes, sizes and modification times. A missing file is a valid state.

    Safe from any thread. Several concurrent callers may all see the same change.

    Args:
        paths: The files. Symbolic links are followed, so that the replacement of a mounted secret is a change.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._state()

    def have_changed(self) -> bool:
        """Returns whether a file has changed since the last call, or since this object was made."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        return True

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stat(path) for path in self._paths)


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # runs at every call; Path.stat takes three times as long
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
