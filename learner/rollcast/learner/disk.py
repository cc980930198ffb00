"""Writes complete files or none, syncs folders, and explains errors of full and failing disks."""

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Final

FULL_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# The disk is full, fails, or is read-only. Other errors of a write are errors of this program.
_DISK_TROUBLE: Final = FULL_DISK | {errno.EIO, errno.EROFS, errno.EFBIG}


def free_bytes(folder: Path) -> int | None:
    """Returns the free bytes on the disk of a folder; None if the disk does not report them."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def write_whole(path: Path, content: bytes) -> None:
    """Writes a complete file or none, even if the process or the machine stops.

    Args:
        path: The file; replaced if it exists.
        content: The bytes of the file.

    Raises:
        OSError: The file cannot be written; the error names it. An earlier file of that name is unchanged.
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
    sync(path.parent)  # the rename is an entry of the folder, which is cached apart from the file


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk. Does nothing for a folder on Windows.

    Raises:
        OSError: The disk has failed.
    """
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explain_disk_error(error: OSError) -> str | None:
    """Explains an error of a full or failing disk in a sentence.

    Args:
        error: The error that a write raised.

    Returns:
        The message; None if the error has another cause.
    """
    if error.errno not in _DISK_TROUBLE:
        return None
    what = f"{error.filename} cannot be written" if error.filename else "a file cannot be written"
    if error.errno not in FULL_DISK:
        return f"{what}: {error.strerror}; expected a disk that can be written to; check it, or choose another"
    # the folder of a run that could not start may be removed by now, so look at its parents
    folders = Path(error.filename).parents if error.filename else ()
    free = next((free_bytes(folder) for folder in folders if folder.is_dir()), None)
    left = "" if free is None else f", {free:,} bytes are free"
    return f"{what}: {error.strerror}{left}; expected room for the file; free some space, or choose another disk"
