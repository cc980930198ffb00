"""The output of commands."""

import io
from collections.abc import Callable

from rollcast.services.settings.settings import ProcessSettings


def printed(command: Callable[..., int], settings: type[ProcessSettings], *arguments: object) -> str:
    """Returns what a command prints when it succeeds with these arguments."""
    out = io.StringIO()
    assert command(settings.from_command_line("rollcast", [str(argument) for argument in arguments]), out) == 0
    return out.getvalue()
