"""Finds a folder for sockets, because the path of the usual temporary folder may be too long for a socket."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Final

from rollcast.services.errors import ConfigurationError

# The longest path of a folder for temporary files, in bytes. A socket's path may have 103 bytes on macOS and 107 on
# Linux. multiprocessing's folder and socket take 32 of them.
_LONGEST: Final = 70


@contextlib.contextmanager
def short_temporary_paths() -> Iterator[None]:
    """Uses a shorter folder for temporary files in the `with` block, if the usual path is too long for sockets.

    Raises:
        ConfigurationError: No shorter folder with write access was found.
    """
    before = tempfile.tempdir
    usual = tempfile.gettempdir()
    shorter = (os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", "/var/tmp")
    for folder in (usual, *shorter):
        if 0 < len(os.fsencode(folder)) <= _LONGEST and os.access(folder, os.W_OK | os.X_OK):
            break
    else:
        raise ConfigurationError(
            f"the folder for temporary files is {usual!r}, too long for the path of a socket; expected at most "
            f"{_LONGEST} bytes; set TMPDIR to a shorter one"
        )
    tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = before
