"""A small disk of its own, which can be filled and freed."""

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

_BYTES = 256 << 20
# The name of a mount, before the id of its process.
_NAME = "rollcast-small-disk-"


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
        _unmount_those_of_killed_processes()
        self.path.mkdir(parents=True)
        options = f"size={self._n_bytes},mode=777"
        mount = ["mount", "-t", "tmpfs", "-o", options, f"{_NAME}{os.getpid()}", str(self.path)]
        self.is_mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.is_mounted:
            _unmount(self.path)

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


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def _unmount_those_of_killed_processes() -> None:
    for partition in psutil.disk_partitions(all=True):
        number = partition.device.removeprefix(_NAME)
        if number != partition.device and not psutil.pid_exists(int(number)):
            _unmount(Path(partition.mountpoint))
