"""Lists the options of a settings class, one for each setting, for help, errors and completion."""

import contextlib
import functools
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rollcast.services.errors import ConfigurationError


class Takes(Enum):
    """The kind of value that an option takes."""

    NOTHING = auto()  # --insecure, --no-insecure
    CHOICE = auto()
    PATH = auto()
    VALUE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of the command line, or a positional argument.

    Attributes:
        path: The path of the setting, for example `("impala", "learning_rate")`.
        takes: The kind of value.
        metavar: The value's placeholder in the help, such as `INT` or `{cpu,cuda}`; empty if the option takes no value.
        choices: The allowed values, or examples of them; empty: any value.
        description: The setting's description.
        default: The default; None if the setting has no default, or an empty one.
        positional: Whether the option is a positional argument.
    """

    path: tuple[str, ...]
    takes: Takes
    metavar: str
    choices: tuple[str, ...]
    description: str
    default: object
    positional: bool

    @property
    def name(self) -> str:
        """The option as typed, for example `--impala.learning-rate`."""
        return option_name(self.path)

    @property
    def spellings(self) -> tuple[str, ...]:
        """All spellings of the option. A flag also has `--no-NAME`; a positional argument has no spelling."""
        if self.positional:
            return ()
        return (self.name, f"--no-{self.name[2:]}") if self.takes is Takes.NOTHING else (self.name,)


def option_name(path: Iterable[str]) -> str:
    """Returns a setting's option: `("impala", "learning_rate")` is `--impala.learning-rate`."""
    return "--" + ".".join(path).replace("_", "-")


def with_options(text: str, group: Sequence[str], settings: type[BaseModel]) -> str:
    """Returns a message about a group of settings with the names of its settings as options.

    Replaces names of several words, and a name at the beginning: others may be plain words, such as `entry`.

    Args:
        text: The message, such as `"min_size is 100; ..."`.
        group: The path of the group, such as `("replay",)`.
        settings: The group's class.
    """

    def option(name: re.Match[str]) -> str:
        is_setting = name[0] in settings.model_fields and ("_" in name[0] or name.start() == 0)
        return option_name((*group, name[0])) if is_setting else name[0]

    return re.sub(r"(?<![\w.-])\w+", option, text)


@contextlib.contextmanager
def naming_options(group: Sequence[str], settings: type[BaseModel]) -> Iterator[None]:
    """Raises the body's errors about settings with the names of options; see `with_options`. Also a decorator."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(with_options(f"{error}", group, settings)) from error


def variable_name(path: Iterable[str]) -> str:
    """Returns a setting's variable: `("impala", "learning_rate")` is `ROLLCAST_IMPALA__LEARNING_RATE`."""
    return "ROLLCAST_" + "__".join(path).upper()


def options_of(settings: type[BaseModel], defaults: Mapping[str, Any] | None = None) -> tuple[Option, ...]:
    """Returns the options of a settings class, including options of nested settings.

    Args:
        settings: The class.
        defaults: Defaults that replace the class's defaults, by name, nested like the settings.
    """
    return _own_options(settings) if defaults is None else tuple(_options(settings, defaults, ()))


@functools.cache
def _own_options(settings: type[BaseModel]) -> tuple[Option, ...]:
    return tuple(_options(settings, {}, ()))


def _options(settings: type[BaseModel], defaults: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterable[Option]:
    for name, field in settings.model_fields.items():
        path, kind = (*prefix, name), bare_type(field.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _options(kind, defaults.get(name, {}), path)
            continue
        takes, metavar, choices = _value(kind)
        yield Option(
            path=path,
            takes=takes,
            metavar=metavar,
            choices=choices or tuple(map(str, field.examples or ())),
            description=field.description or "",
            default=defaults[name] if name in defaults else _default(field),
            positional=any(isinstance(mark, type) and mark.__name__ == "_CliPositionalArg" for mark in field.metadata),
        )


def bare_type(annotation: Any) -> Any:  # noqa: ANN401  # an annotation has no common type
    """Returns a type without `Annotated` and without None."""
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        return bare_type(kinds[0]) if len(kinds) == 1 else annotation
    return annotation


def _value(kind: Any) -> tuple[Takes, str, tuple[str, ...]]:  # noqa: ANN401  # an annotation has no common type
    """Returns the kind of value that a type's option takes, its placeholder in the help, and its possible values."""
    if kind is bool:
        return Takes.NOTHING, "", ()
    if typing.get_origin(kind) is Literal:
        choices = tuple(str(choice) for choice in typing.get_args(kind))
        return Takes.CHOICE, f"{{{','.join(choices)}}}", choices
    if kind is Path:
        return Takes.PATH, "PATH", ()
    if typing.get_origin(kind) is tuple:
        metavar = _value(bare_type(typing.get_args(kind)[0]))[1]
        return Takes.VALUE, f"{metavar},...", ()
    if typing.get_origin(kind) is dict:
        return Takes.VALUE, "JSON", ()
    return Takes.VALUE, {int: "INT", float: "NUMBER"}.get(kind, "TEXT"), ()


def _default(field: FieldInfo) -> object:
    default = field.get_default(call_default_factory=True)
    return None if default is PydanticUndefined else default
