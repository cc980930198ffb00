"""Builds the parsers of all commands' options when it is imported: the zygote's forks then have them."""

import contextlib

from rollcast.services.errors import ConfigurationError
from rollcast.tools.commands import COMMANDS

for _command in COMMANDS.values():
    with contextlib.suppress(ConfigurationError):
        # refused only when the parser has been built
        _command.settings().from_command_line("rollcast", ["--no-such-option"])
