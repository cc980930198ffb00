"""What a process exits with whose settings cannot be right."""

from collections.abc import Mapping
from typing import Final

# Another start changes nothing.
BAD_SETTINGS: Final = 2

# The variable that says what to exit with instead. An engine whose restart policies know only success and failure
# leaves alone what exits with 0.
_VARIABLE: Final = "ROLLCAST_SETTINGS_EXIT_CODE"


def bad_settings_exit_code(environment: Mapping[str, str]) -> int:
    """Returns what to exit with for settings that cannot be right.

    Args:
        environment: The process's.

    Returns:
        2, or what ROLLCAST_SETTINGS_EXIT_CODE says, if that is a number from 0 to 255.
    """
    given = environment.get(_VARIABLE, "")
    return int(given) if given.isdecimal() and int(given) <= 255 else BAD_SETTINGS
