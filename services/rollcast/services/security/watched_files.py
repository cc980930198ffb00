"""Whether files have been replaced since they were read."""

import os
from collections.abc import Iterable
from pathlib import Path


class WatchedFiles:
    """Notices that files have changed, by their inodes, sizes and times; a missing file is a state like any other.

    Safe from any thread; of several that ask at once, more than one may hear of the same change.

    Args:
        paths: The files; symbolic links are followed, so a mounted secret that is swapped is noticed.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._state()

    def have_changed(self) -> bool:
        """Whether anything is different from the last time this was asked, or from the beginning."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        return True

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stat(path) for path in self._paths)


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - a third of the time of Path.stat, at every call
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
