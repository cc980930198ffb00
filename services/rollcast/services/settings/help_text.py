"""Writes the help of a command, with its most important options or with all options."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from rollcast.services.settings.command_line import CONFIG, HELP, HELP_ALL
from rollcast.services.settings.options import Option, Takes, options_of

_COLUMN: Final = 34
_OTHER_SOURCES: Final = (
    "You can also give each setting as ROLLCAST_<NAME> in the environment (ROLLCAST_A__B for --a.b), or in a YAML file "
    f"with {CONFIG} FILE. The command line overrides the environment, and the environment overrides the file. Write "
    "whole numbers as 1e6, 1_000_000, 64k or 20M, and lists with commas. If a setting is optional, None removes its "
    "value."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpScope:
    """The settings that apply to the given choices.

    Attributes:
        hidden: The groups of settings that belong to another choice, and so are hidden: `("sac", "dqn")`.
        defaults: Defaults that replace the class's defaults, by name, nested like the settings.
        note: A hint about the settings of another choice; empty: no hint.
    """

    hidden: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def options(self, settings: type[BaseModel]) -> list[Option]:
        """Returns the applicable options of a settings class."""
        return [option for option in options_of(settings, self.defaults) if option.path[0] not in self.hidden]

    def spellings(self, settings: type[BaseModel]) -> list[str]:
        """Returns every spelling of the applicable options."""
        return [name for option in self.options(settings) for name in option.spellings]


def help_text(
    program: str, settings: type[BaseModel], scope: HelpScope, first: Sequence[str], *, everything: bool, width: int
) -> str:
    """Returns the help of a command.

    Args:
        program: The beginning of the command line, for example `"rollcast train"`.
        settings: The settings class; its docstring describes the command.
        scope: The applicable settings.
        first: The most important settings in order, nested ones as `impala.learning_rate`; empty: show all.
        everything: Whether to show all other settings, too.
        width: The width of the text, in columns.
    """
    options = scope.options(settings)
    positional = [option for option in options if option.positional]
    by_path = {".".join(option.path): option for option in options if not option.positional}
    chosen = [by_path[path] for path in first if path in by_path] or list(by_path.values())
    rest = [option for option in by_path.values() if option not in chosen]
    arguments = "".join(f" {option.path[0].upper()}" for option in positional)
    lines = [f"usage: {program} [options]{arguments}", ""]
    lines += textwrap.wrap(f"{' '.join((settings.__doc__ or '').split())} {_OTHER_SOURCES}", width)
    if positional:
        lines += [
            "",
            "arguments:",
            *_entries(((option.path[0].upper(), _what(option)) for option in positional), width),
        ]
    lines += ["", "the most important options:" if rest else "options:"]
    lines += _entries(((_typed(option), _what(option)) for option in chosen), width)
    asked = [(f"-h, {HELP}", "Show this help and exit."), (f"{CONFIG} FILE", "Read settings from a YAML file.")]
    if everything:
        lines += _grouped(settings, rest, width)
    elif rest:
        asked.insert(1, (HELP_ALL, f"Show the other {len(rest)} options too, and exit."))
    lines += ["", *_entries(iter(asked), width)]
    if scope.note:
        lines += ["", *textwrap.wrap(scope.note, width)]
    return "\n".join(lines) + "\n"


def _grouped(settings: type[BaseModel], options: Sequence[Option], width: int) -> Iterator[str]:
    """Yields the options by group, each group under its description."""
    own = [option for option in options if len(option.path) == 1]
    if own:
        yield from ("", "further options:")
        yield from _entries(((_typed(option), _what(option)) for option in own), width)
    for group in dict.fromkeys(option.path[0] for option in options if len(option.path) > 1):
        yield ""
        yield f"{(settings.model_fields[group].description or group).rstrip('.')}:"
        own = [option for option in options if len(option.path) > 1 and option.path[0] == group]
        yield from _entries(((_typed(option), _what(option)) for option in own), width)


def _typed(option: Option) -> str:
    return f"{option.name}, --no-..." if option.takes is Takes.NOTHING else f"{option.name} {option.metavar}"


def _what(option: Option) -> str:
    if option.default in (None, "", {}, (), []):
        return option.description
    # The description ends with the meaning of a missing value. Here the algorithm or a recipe gives a value.
    description = option.description.partition(" Default: ")[0]
    default = option.default
    if isinstance(default, tuple | list):
        default = ",".join(map(str, default))
    elif isinstance(default, bool):
        default = "on" if default else "off"
    return f"{description} (default: {default})"


def _entries(entries: Iterator[tuple[str, str]], width: int) -> Iterator[str]:
    """Yields two columns. A name that is longer than its column gets a separate line."""
    indent = " " * _COLUMN
    for name, what in entries:
        head = f"  {name}"
        if len(head) + 2 > _COLUMN:
            yield head
            head = ""
        yield from textwrap.wrap(
            what, width, initial_indent=head.ljust(_COLUMN), subsequent_indent=indent, break_on_hyphens=False
        ) or [head]
