"""The `rollcast` command. Imports little, because spawned actor processes import it again."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rollcast.services.errors import ConfigurationError, RollcastError
from rollcast.services.process.exit_codes import bad_settings_exit_code
from rollcast.services.process.imports import uncollected_imports
from rollcast.services.process.installation import require_extra
from rollcast.services.process.output import write_error, write_output
from rollcast.services.process.printable import log_to_stderr, printable_lines
from rollcast.services.settings.suggestions import did_you_mean
from rollcast.services.version import software_version
from rollcast.services.wire.allocator import reuse_large_buffers
from rollcast.tools.commands import COMMANDS, Command

_LISTED = "\n".join(f"  {name:<12} {command.summary}" for name, command in COMMANDS.items())
USAGE = f"""\
usage: rollcast COMMAND [options]

Rollouts in, policies cast out: distributed reinforcement learning over gRPC.

commands:
{_LISTED}

`rollcast COMMAND --help` explains the most important settings, --help-all explains all. Give settings on the command
line, as ROLLCAST_<NAME> in the environment, or in a YAML file with --config FILE. The command line overrides the
environment, and the environment overrides the file.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Returns:
        The exit code: 0, 1 after an error, 2 for settings that are not valid, 130 after Ctrl-C.
    """
    command, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if command in ("-h", "--help", "help"):
        return _exit_code("rollcast", lambda: _print(USAGE))
    if command == "--version":
        return _exit_code("rollcast", lambda: _print(f"rollcast {software_version()}\n"))
    if command not in COMMANDS:
        guess = did_you_mean(command, COMMANDS)
        expected = f"expected one of {', '.join(COMMANDS)}"
        write_error(f"rollcast: there is no command {command!r}; {expected}{f'; {guess}' if guess else ''}\n")
        return 2
    return _exit_code(f"rollcast {command}", lambda: _run(command, COMMANDS[command], rest))


def _print(text: str) -> int:
    write_output(sys.stdout, text)
    return 0


def _exit_code(program: str, run: Callable[[], int]) -> int:
    try:
        return run()
    except ConfigurationError as error:
        write_error(printable_lines(f"{program}: {error}") + "\n")
        return bad_settings_exit_code(os.environ)
    except RollcastError as error:
        told = f"{program}: {type(error).__name__}: {error}"
        # the traceback of an environment's error, to which the message refers
        where = getattr(error, "exception_traceback", "")
        write_error(printable_lines(f"{told}\n{where}" if where else told) + "\n")
        return 1
    except OSError as error:
        from rollcast.learner.disk import explain_disk_error

        if (problem := explain_disk_error(error)) is None:
            raise
        write_error(printable_lines(f"{program}: {problem}") + "\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _run(name: str, command: Command, arguments: list[str]) -> int:
    program = f"rollcast {name}"
    if command.subcommand:
        expected = f"expected rollcast {name} {command.subcommand}"
        if not arguments:
            raise ConfigurationError(f"{name} needs a second word; {expected}")
        given, *rest = arguments
        if given == command.subcommand:
            arguments = rest
        elif given not in ("-h", "--help", "--help-all"):
            raise ConfigurationError(f"there is no command {name} {given!r}; {expected}")
        program += f" {command.subcommand}"
    with uncollected_imports():
        settings: Any = command.settings().from_command_line(program, arguments)
    if command.extra:
        require_extra(command.extra, "this command", *command.modules)
    if command.logs:
        log_to_stderr(settings.log_level)
    if command.has_large_buffers:
        reuse_large_buffers()
    with uncollected_imports():
        run = command.function()
    if not command.outlives_output:
        return run(settings, sys.stdout)
    from rollcast.learner.commands.printing import lossy

    return run(settings, lossy(sys.stdout))


if __name__ == "__main__":
    sys.exit(main())
