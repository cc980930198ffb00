"""Checks the places of files that a command writes at its end, before it begins, and writes small ones."""

import errno
from pathlib import Path

from rollcast.services.errors import ConfigurationError
from rollcast.services.process.named_files import is_replaceable, write_named_file


def check_new_file(file: Path | None, option: str, *, is_renamed: bool = True) -> None:
    """Checks that a file can be made, as far as its folder shows.

    Args:
        file: The file; None: no file is to be written.
        option: The option that names the file, for the message.
        is_renamed: False: the command writes into the file, which may be a device or a pipe, such as /dev/stdout.

    Raises:
        ConfigurationError: The file's folder does not exist, or the file is a folder, a device or a pipe.
    """
    if file is None:
        return
    if not file.parent.is_dir():
        raise ConfigurationError(
            f"{option}: there is no folder {str(file.parent)!r}; expected an existing one; make it, or choose another "
            "file"
        )
    if file.is_dir():
        raise ConfigurationError(f"{option}: {str(file)!r} is a folder; expected a file; add the file's name")
    if is_renamed and not is_replaceable(file):
        raise ConfigurationError(
            f"{option}: {str(file)!r} is not a regular file; expected a file that this process may replace; choose "
            "another"
        )


def write_new_file(file: Path, option: str, text: str) -> None:
    """Writes text into the file that an option names. A pipe must be read within seconds.

    Args:
        file: The file.
        option: The option, for the message.
        text: The content.

    Raises:
        ConfigurationError: The file is a pipe, and no process reads it.
        OSError: The file cannot be written for another reason.
    """
    try:
        write_named_file(file, text.encode())
    except OSError as error:
        if error.errno != errno.ETIMEDOUT:
            raise
        raise ConfigurationError(
            f"{option}: {str(file)!r} cannot be written: {error.strerror}; expected a file, or a pipe that another "
            "process reads; start that process earlier, or choose another file"
        ) from error
