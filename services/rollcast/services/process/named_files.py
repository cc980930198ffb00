"""Reads, writes and checks files that an option names: no pipe, device or huge file hangs a process or fills it.

Imports little, because clients use it.
"""

import errno
import os
import select
import stat
import time
from pathlib import Path
from typing import BinaryIO, Final

# A file of certificates, tokens or a batch script. The authorities of a whole operating system have 0.3 MB.
MAX_TEXT_BYTES: Final = 1 << 22
# `os.read` allocates as much as it may read, and most files are small.
_PIECE_BYTES: Final = 1 << 16
# The seconds in which a pipe must deliver its content, or be read. Shells write at once, as in `--config <(generate)`.
_PATIENCE_S: Final = 5.0
# Seconds between two looks for a process that reads a pipe.
_LOOK_S: Final = 0.05
# Without O_NONBLOCK, the open of a pipe waits for a process that writes to it. Windows has neither flag.
_SHARED_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_FLAGS: Final = os.O_RDONLY | _SHARED_FLAGS
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _SHARED_FLAGS


def read_named_file(path: Path, most: int = MAX_TEXT_BYTES, *, patience_s: float = _PATIENCE_S) -> bytes:
    """Reads a small file. Pipes and devices are read, too, if their content ends in time.

    Args:
        path: The file.
        most: The largest number of bytes.
        patience_s: The seconds in which the content of a pipe or a device must end.

    Raises:
        OSError: The file cannot be read, has more bytes, or does not end in time.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        deadline = time.monotonic() + patience_s
        content = bytearray()
        while is_file or _is_ready(descriptor, select.POLLIN, deadline):
            try:
                piece = os.read(descriptor, min(_PIECE_BYTES, most + 1 - len(content)))
            except BlockingIOError:
                continue
            if not piece:
                return bytes(content)
            content += piece
            if len(content) > most:
                raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        raise OSError(errno.ETIMEDOUT, f"its content has not ended after {patience_s:g} s", str(path))
    finally:
        os.close(descriptor)


def write_named_file(path: Path, content: bytes, *, patience_s: float = _PATIENCE_S) -> None:
    """Writes a small file. Pipes and devices are written, too, if a process reads them in time.

    Args:
        path: The file; its content is replaced.
        content: The bytes to write.
        patience_s: The seconds in which a process must read a pipe.

    Raises:
        OSError: The file cannot be written; with ETIMEDOUT, no process has read the pipe in time.
    """
    deadline = time.monotonic() + patience_s
    descriptor = _open_to_write(path, deadline)
    try:
        left = memoryview(content)
        while left:
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:
                if not _is_ready(descriptor, select.POLLOUT, deadline):
                    raise _unread(path) from None
    finally:
        os.close(descriptor)


def _open_to_write(path: Path, deadline: float) -> int:
    while True:
        try:
            return os.open(path, _WRITE_FLAGS, 0o666)
        except OSError as error:
            # a pipe that no process has opened to read
            if error.errno != errno.ENXIO:
                raise
        if time.monotonic() > deadline:
            raise _unread(path)
        time.sleep(_LOOK_S)


def _unread(path: Path) -> OSError:
    return OSError(errno.ETIMEDOUT, "no process reads it", str(path))


def open_regular_file(path: Path) -> BinaryIO:
    """Opens a file of any size, which must be neither a device nor a pipe.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    file = os.fdopen(os.open(path, _FLAGS), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def is_replaceable(path: Path) -> bool:
    """Returns whether a new file may take the place of a path: a regular file is there, or none.

    A rename would replace a device, such as /dev/null, for every process of the machine. It would also replace
    /dev/stdout, a link to an open file.
    """
    if path.is_symlink() and path.readlink().is_relative_to("/proc"):
        return False
    return path.is_file() or not path.exists()


def _is_ready(descriptor: int, event: int, deadline: float) -> bool:
    """Waits until a pipe or a device has content or room, or has ended. Returns False after the deadline."""
    found = select.poll()
    found.register(descriptor, event)
    left_s = deadline - time.monotonic()
    return left_s > 0 and bool(found.poll(left_s * 1000))
