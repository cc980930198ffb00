"""Files on a disk that may be full: written whole or not at all, and errors that say what is missing."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

FULL_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# The disk is full, fails, or may only be read. Anything else that an OSError says is an error of ours.
_DISK_TROUBLE: Final = FULL_DISK | {errno.EIO, errno.EROFS, errno.EFBIG}


def free_bytes(folder: Path) -> int | None:
    """Returns the bytes that are free on the disk of a folder; None where it does not say."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file: it is there whole or not at all, whenever the process or the machine stops.

    Args:
        path: The file; one that is there is replaced.
        content: All that it is to hold.

    Raises:
        OSError: It cannot be written, and names the file; the one before is there, and nothing else.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    # The rename is in the directory, which has a cache of its own.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain_disk_error(error: OSError) -> str | None:
    """Says what a disk lacks, for people.

    Args:
        error: What a write raised.

    Returns:
        The message; None where the error is not about the disk.
    """
    if error.errno not in _DISK_TROUBLE:
        return None
    what = f"{error.filename} cannot be written" if error.filename else "a file cannot be written"
    if error.errno not in FULL_DISK:
        return f"{what}: {error.strerror}; expected a disk that can be written to; look at it, or choose another"
    # the folder of a run that could not begin is gone by now
    folders = Path(error.filename).parents if error.filename else ()
    free = next((free_bytes(folder) for folder in folders if folder.is_dir()), None)
    left = "" if free is None else f", {free:,} bytes are free"
    return f"{what}: {error.strerror}{left}; expected room for it; free some space, or choose another disk"
