"""Chooses the exit code of a process whose settings are wrong."""

from collections.abc import Mapping
from typing import Final

# The exit code for wrong settings; starting again does not help.
BAD_SETTINGS: Final = 2

# The variable that overrides the exit code. Some engines' restart policies distinguish only success and failure. They
# do not restart a process that exits with 0.
_VARIABLE: Final = "ROLLCAST_SETTINGS_EXIT_CODE"


def bad_settings_exit_code(environment: Mapping[str, str]) -> int:
    """Returns the exit code for wrong settings.

    Args:
        environment: The variables of the process.

    Returns:
        The value of ROLLCAST_SETTINGS_EXIT_CODE if it is a number from 0 to 255, otherwise 2.
    """
    given = environment.get(_VARIABLE, "")
    return int(given) if given.isdecimal() and int(given) <= 255 else BAD_SETTINGS
