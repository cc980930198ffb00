"""Finds the source of a setting's value: command line, environment or file."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcast.services.settings.options import option_name, variable_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """The sources of a process's settings.

    Attributes:
        arguments: The command line.
        from_file: The values in the file.
        file: The file; None: no file.
        preset: The values that replace defaults, such as a recipe's values.
    """

    arguments: Sequence[str] = ()
    from_file: Mapping[str, Any]
    file: Path | None = None
    preset: Mapping[str, Any] = field(default_factory=dict)

    def value_of(self, name: str) -> object:
        """Returns the unchecked value of a setting that is not nested; None if the user gave no value."""
        option = option_name((name,))
        for index, argument in enumerate(self.arguments):
            if argument == option and index + 1 < len(self.arguments):
                return self.arguments[index + 1]
            if argument.startswith(f"{option}="):
                return argument.partition("=")[2]
        return self._variables().get(variable_name((name,))) or self.from_file.get(name, self.preset.get(name))

    def options_in(self, path: Sequence[str]) -> list[str]:
        """Returns the command line's options for a setting or its nested settings: `--sac.tau` for `("sac",)`."""
        options = [argument.partition("=")[0] for argument in self.arguments]
        name = option_name(path)
        negated = f"--no-{name[2:]}"
        return [
            option for option in options if option in (name, negated) or option.startswith((f"{name}.", f"{negated}."))
        ]

    def describe(self, path: Sequence[str]) -> str:
        """Describes the source of a setting, such as `" (from 'run.yaml')"`; empty for the command line."""
        above = [variable_name(path[:length]) for length in range(1, len(path) + 1)]
        if self.options_in(path):
            return ""
        for variable in above:
            if variable in self._variables():
                return f" (from {variable})"
        if self.file is not None and path and path[0] in self.from_file:
            return f" (from {str(self.file)!r})"
        return ""

    def variables(self) -> frozenset[str]:
        """Returns the names of all set `ROLLCAST_*` variables, in capital letters."""
        return frozenset(name for name in self._variables() if name.startswith("ROLLCAST_"))

    @staticmethod
    def _variables() -> dict[str, str]:
        # pydantic-settings takes names in any case
        return {name.upper(): value for name, value in os.environ.items() if value}
