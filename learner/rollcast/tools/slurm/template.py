"""The template of batch scripts, and the rules for your own."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rollcast.services.errors import ConfigurationError
from rollcast.services.process.named_files import read_named_file

DIRECTIVES: Final = "@DIRECTIVES@"
PROLOG: Final = "@PROLOG@"
COMMAND: Final = "@COMMAND@"

# sbatch reads #SBATCH lines up to the first line that is neither empty nor a comment.
TEMPLATE: Final = f"""\
#!/bin/bash
{DIRECTIVES}

{PROLOG}

{COMMAND}
"""

_PLACEHOLDERS: Final = (DIRECTIVES, PROLOG, COMMAND)
_LINE: Final = re.compile(r"^[ \t]*(@[A-Z]+@)[ \t]*$", re.MULTILINE)


def read_template(path: Path | None) -> str:
    """Returns the user's own template, or rollcast's.

    Args:
        path: The file; None: rollcast's template.

    Raises:
        ConfigurationError: The file cannot be read, is not a script, or does not have each placeholder exactly once.
    """
    if path is None:
        return TEMPLATE
    try:
        template = read_named_file(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(
            f"--template: {str(path)!r} cannot be read: {why}; expected a batch script with the lines "
            f"{', '.join(_PLACEHOLDERS)}; correct the path or the file"
        ) from error
    if not template.startswith("#!"):
        raise ConfigurationError(
            f"--template: {str(path)!r} does not begin with '#!', and sbatch refuses such a script; expected "
            "'#!/bin/bash' as its first line; add it"
        )
    found = _LINE.findall(template)
    for placeholder in _PLACEHOLDERS:
        if found.count(placeholder) != 1:
            raise ConfigurationError(
                f"--template: {str(path)!r} has the line {placeholder} {found.count(placeholder)} times; expected each "
                f"of {', '.join(_PLACEHOLDERS)} once, alone on its line; correct the file"
            )
    if unknown := sorted(set(found) - set(_PLACEHOLDERS)):
        raise ConfigurationError(
            f"--template: {str(path)!r} has the line {unknown[0]}, which is not a placeholder; expected "
            f"{', '.join(_PLACEHOLDERS)}; remove it"
        )
    return template


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Returns a template with the text of each placeholder in its place.

    Args:
        template: As `read_template` returns it.
        parts: The text of each placeholder.
    """
    return _LINE.sub(lambda match: parts[match[1]], template)
