"""A small disk of its own, which can be filled and freed."""

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

_BYTES = 256 << 20


class SmallDisk:
    """A file system in memory, mounted for the body; entered, `path` is an empty folder on it.

    Args:
        path: The folder to make and to mount it at.
    """

    def __init__(self, path: Path, n_bytes: int = _BYTES) -> None:
        self.path = path
        self._n_bytes = n_bytes
        self._filler = path / "filler"

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True)
        options = f"size={self._n_bytes},mode=777"
        mount = ["mount", "-t", "tmpfs", "-o", options, "chaos", str(self.path)]
        self.is_mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)

    def fill(self, leave_bytes: int = 0) -> None:
        """Leaves no byte, or so many."""
        opened = os.open(self._filler, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            step = self._n_bytes // 16
            end = 0
            while step:
                try:
                    os.posix_fallocate(opened, end, step)
                    end += step
                except OSError:
                    step //= 2
            os.ftruncate(opened, max(0, end - leave_bytes))
        finally:
            os.close(opened)

    def free(self) -> None:
        """Gives everything back."""
        self._filler.unlink(missing_ok=True)
