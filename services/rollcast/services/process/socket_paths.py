"""Finds a folder for sockets, because the path of the usual temporary folder may be too long, or not UTF-8."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Final

from rollcast.services.errors import ConfigurationError
from rollcast.services.process.utf8 import is_utf8

# The longest path of a folder for temporary files, in bytes. A socket's path may have 103 bytes on macOS and 107 on
# Linux. multiprocessing's folder and socket take 32 of them.
_LONGEST: Final = 70


@contextlib.contextmanager
def short_temporary_paths() -> Iterator[None]:
    """Uses another folder for temporary files in the `with` block, if the usual path is too long or not UTF-8.

    Raises:
        ConfigurationError: No such folder with write access was found.
    """
    before = tempfile.tempdir
    usual = tempfile.gettempdir()
    others = (os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", "/var/tmp")
    for folder in (usual, *others):
        if 0 < len(os.fsencode(folder)) <= _LONGEST and is_utf8(folder) and os.access(folder, os.W_OK | os.X_OK):
            break
    else:
        raise ConfigurationError(
            f"the folder for temporary files is {usual!r}, which is not usable for the path of a socket; expected at "
            f"most {_LONGEST} bytes of UTF-8; set TMPDIR to such a folder"
        )
    tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = before
