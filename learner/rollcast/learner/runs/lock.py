"""Locks a folder for one process, also on file systems without file locks."""

import json
import logging
import os
import platform
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rollcast.services.process.periodic import PeriodicThread

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

# The locked file; without locks, `.lock-N` names the process with the lock.
_FILE: Final = ".lock"
_BEAT_S: Final = 10.0
# Six beats, so that a file system or machine that is busy for a moment loses no run.
_ABANDONED_S: Final = 60.0
# The content of an owner's file after its end.
_ENDED: Final = {"has_ended": True}
# The interval between attempts of a process that waits for a lock.
_LOOK_S: Final = 0.05


@contextmanager
def lock(folder: Path, *, wait_s: float = 0.0) -> Iterator[bool]:
    """Locks a folder until the body, or this process, ends.

    Windows and some Lustre, NFS and FUSE file systems cannot lock files. There a lock file names the process, which
    touches the file every 10 s. The process counts as ended if its file is 60 s old, or, on this machine, once the
    process does not exist.

    Args:
        folder: The folder.
        wait_s: The longest wait, in seconds, for another process with the lock.

    Returns:
        True in the body if the folder is locked; False if another process has the lock.

    Raises:
        OSError: No file can be made in the folder.
    """
    deadline = time.monotonic() + wait_s
    descriptor = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while (is_ours := _flock(descriptor)) is False and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        if is_ours is not None:
            yield is_ours
            return
        while (owner := _Owner.take(folder)) is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        try:
            yield owner is not None
        finally:
            if owner is not None:
                owner.end()
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Returns True while a process has locked a folder."""
    try:
        descriptor = os.open(folder / _FILE, os.O_RDONLY)
    except OSError:  # no process has locked it yet, or it is another user's
        return False
    try:
        is_free = _flock(descriptor, is_shared=True)
    finally:
        os.close(descriptor)
    if is_free is None:
        owners = _owners(folder)
        return bool(owners) and not _is_abandoned(folder / f"{_FILE}-{owners[-1]}")
    return not is_free


def _flock(descriptor: int, *, is_shared: bool = False) -> bool | None:
    """Locks a file without waiting; returns False if another process has locked it, None if locks are not supported."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class _Owner:
    """A process with a lock on a folder, by a numbered file in it.

    Invariant: the file with the highest number belongs to the owner. A process takes only a number above one whose
    owner has ended. Only one process gets it, since a file is created once. The highest number never falls, since its
    file stays until a higher one exists. So no process takes the folder from a living one, however long it pauses
    before its write.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number
        self._path = folder / f"{_FILE}-{number}"
        self._beats = PeriodicThread(self._beat, _BEAT_S, name="run-lock")
        self._beats.start()

    @classmethod
    def take(cls, folder: Path) -> "_Owner | None":
        """Takes a folder; returns None if another process has it."""
        owners = _owners(folder)
        if owners and not _is_abandoned(folder / f"{_FILE}-{owners[-1]}"):
            return None
        number = owners[-1] + 1 if owners else 1
        path = folder / f"{_FILE}-{number}"
        try:
            with path.open("x") as file:
                json.dump({"machine": _machine(), "process": os.getpid()}, file)
        except FileExistsError:
            return None
        if _owners(folder)[-1:] != [number]:
            path.unlink(missing_ok=True)
            return None
        for other in owners:
            (folder / f"{_FILE}-{other}").unlink(missing_ok=True)
        return cls(folder, number)

    def end(self) -> None:
        """Releases the folder."""
        self._beats.close()
        with suppress(OSError), self._path.open("r+") as file:
            file.truncate()
            json.dump(_ENDED, file)

    def _beat(self) -> None:
        """Shows that the process is alive. Ends the process if another one has taken the folder."""
        with suppress(OSError):  # the file system may be away for a while
            if _owners(self._folder)[-1:] == [self._number]:
                os.utime(self._path)
                return
            self._beats.stop()
            logger.critical(
                "another process has taken %s, because this process has not renewed its lock for %.0f s; expected a "
                "renewal every %.0f s; this process stops, so that only one writes there; check whether its disk or "
                "machine hangs",
                self._folder,
                _ABANDONED_S,
                _BEAT_S,
            )
            os.kill(os.getpid(), signal.SIGTERM)


def _owners(folder: Path) -> list[int]:
    """Returns the numbers of the files that name owners, highest last."""
    numbers = (path.name.removeprefix(f"{_FILE}-") for path in folder.glob(f"{_FILE}-*"))
    return sorted(int(number) for number in numbers if number.isdecimal())


def _is_abandoned(path: Path) -> bool:
    try:
        age_s = time.time() - path.stat().st_mtime
        owner = json.loads(path.read_bytes())
        if owner == _ENDED:
            return True
        is_here, process = owner["machine"] == _machine(), int(owner["process"])
    except FileNotFoundError:
        return True
    except (KeyError, TypeError, ValueError):  # its owner has not written it yet, or never will
        return age_s > _ABANDONED_S
    return age_s > _ABANDONED_S or (is_here and not _is_there(process))


def _is_there(process: int) -> bool:
    if os.name == "nt":  # where signal 0 is Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _machine() -> str:
    """Identifies the scope of process numbers: this machine since its start, and this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()
