"""Parses a process's command line, without abbreviations. Errors suggest existing options."""

import argparse
import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from rollcast.services.errors import ConfigurationError
from rollcast.services.process.utf8 import is_utf8
from rollcast.services.settings.suggestions import did_you_mean

logger = logging.getLogger(__name__)

CONFIG: Final = "--config"
HELP: Final = "--help"
HELP_ALL: Final = "--help-all"


class CommandLineParser(argparse.ArgumentParser):
    """Parses options exactly as they are spelt, and raises the errors that argparse would print.

    Args:
        known: All options, for suggestions.
    """

    def __init__(self, known: Sequence[str]) -> None:
        super().__init__(allow_abbrev=False, add_help=False)
        self._known, self._applicable = [*known, CONFIG, HELP, HELP_ALL], known
        # accepts -1e3 as a value, too, not only -1000
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")

    def expect(self, program: str, applicable: Sequence[str]) -> None:
        """Sets the program and the options for errors about the next command line.

        Args:
            program: The beginning of the command line, for example `"rollcast train"`.
            applicable: The applicable options. Errors suggest them first.
        """
        self.prog, self._applicable = program, applicable

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses the options.

        Raises:
            ConfigurationError: An option does not exist.
        """
        parsed, unknown = super().parse_known_args(args, namespace)
        options = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
        if unknown and "--" in (args or ()):
            raise ConfigurationError(
                "--: nothing after it is read as an option; expected options alone; leave out the --"
            )
        if unknown:
            lines = [self._unknown(option) for option in options]
            raise ConfigurationError("\n".join(lines) or f"{unknown[0]!r} is an extra argument; expected options")
        self._warn_of_repetitions(args or ())
        arguments = {action.dest for action in self._actions if not action.option_strings}
        for name, values in vars(parsed).items():
            if isinstance(values, list):
                # One text, as in a variable. A path among the arguments may have commas.
                setattr(parsed, name, json.dumps(values) if name in arguments else ",".join(values))
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Raises argparse's error about an option.

        Raises:
            ConfigurationError: Always.
        """
        option, separator, problem = message.removeprefix("argument ").partition(": ")
        if option == "the following arguments are required":
            names = problem.replace("-", "_")
            raise ConfigurationError(f"{names} is not given; expected {self.prog} {names.replace(',', '')}; add it")
        if not (separator and option.startswith("-")):
            raise ConfigurationError(f"{message}; {HELP} explains every option")
        option = option.partition("/")[0]
        if problem == "expected one argument":
            raise ConfigurationError(
                f"{option}: no value is given; expected one; write {option} VALUE, or {option}=VALUE if it begins with "
                "a dash"
            )
        if problem.startswith("ignored explicit argument"):
            raise ConfigurationError(
                f"{option}: a value is given; expected none; write {option} or --no-{option[2:]} alone"
            )
        raise ConfigurationError(f"{option}: {problem}; {HELP} explains it")

    def _warn_of_repetitions(self, args: Sequence[str]) -> None:
        """Logs a warning for each option of a single value that is given several times."""
        actions = (self._option_string_actions.get(argument.partition("=")[0]) for argument in args)
        # A list is the values of all its options.
        n_given = Counter(
            action.option_strings[0]
            for action in actions
            if action is not None and not isinstance(action, argparse._AppendAction)
        )
        for option, n in n_given.items():
            if n > 1:
                # Without the values, which may be tokens.
                logger.warning("%s is given %d times, and only the last one counts; expected it once", option, n)

    def _unknown(self, option: str) -> str:
        guess = did_you_mean(option, self._known, self._applicable)
        # cut, since a typed word may have any length
        return f"{option[:120]}: there is no such option; {guess or f'{HELP_ALL} lists all'}"


def take_config(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Extracts `--config FILE` from the arguments, because rollcast reads the file first.

    Args:
        arguments: The command line.

    Returns:
        The other arguments, and the file or None.

    Raises:
        ConfigurationError: No file follows, its path is not UTF-8, or the option is given twice.
    """
    rest: list[str] = []
    files: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == CONFIG:
            files.append(next(remaining, ""))
        elif argument.startswith(f"{CONFIG}="):
            files.append(argument.partition("=")[2])
        else:
            rest.append(argument)
    if "" in files:
        raise ConfigurationError(f"{CONFIG}: no file is given; expected {CONFIG} FILE.yaml")
    if len(files) > 1:
        raise ConfigurationError(f"{CONFIG}: {len(files)} files are given, {', '.join(files)}; expected one; join them")
    if files and not is_utf8(files[0]):
        raise ConfigurationError(f"{CONFIG}: {files[0]!r} is not UTF-8; expected UTF-8; choose another path")
    return rest, Path(files[0]) if files else None
