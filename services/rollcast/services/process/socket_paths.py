"""Finds a folder for sockets: their paths have at most some hundred bytes, and temporary folders may be longer."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Final

from rollcast.services.errors import ConfigurationError

# Bytes of a folder for temporary files. A socket's path may have 103 bytes on macOS and 107 on Linux; 32 of them are
# those of multiprocessing's folder and socket in there.
_LONGEST: Final = 70


@contextlib.contextmanager
def short_temporary_paths() -> Iterator[None]:
    """Lets what the body makes in the folder for temporary files lie in a shorter one, if the name of that is too long.

    Raises:
        ConfigurationError: There is no shorter one that can be written to.
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
