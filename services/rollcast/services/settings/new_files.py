"""Checks the places of files that a command writes at its end, before it begins."""

from pathlib import Path

from rollcast.services.errors import ConfigurationError


def check_new_file(file: Path | None, option: str) -> None:
    """Checks that a file can be made, as far as its folder shows.

    Args:
        file: The file; None: no file is to be written.
        option: The option that names the file, for the message.

    Raises:
        ConfigurationError: The file's folder does not exist, or the file is a folder.
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
