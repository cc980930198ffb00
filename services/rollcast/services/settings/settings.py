"""Defines the base of every process's settings. Precedence: command line, environment, file, default."""

import dataclasses
import functools
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from rollcast.services.errors import ConfigurationError
from rollcast.services.process.output import write_output
from rollcast.services.process.utf8 import is_utf8
from rollcast.services.settings.command_line import CONFIG, HELP, HELP_ALL, CommandLineParser, take_config
from rollcast.services.settings.help_text import HelpScope, help_text
from rollcast.services.settings.numbers import expand_whole_number
from rollcast.services.settings.options import bare_type, option_name, options_of, variable_name, with_options
from rollcast.services.settings.origins import Origins
from rollcast.services.settings.suggestions import did_you_mean, is_begun, is_misspelt

logger = logging.getLogger(__name__)

# Variables of other processes whose names resemble a setting of this process.
_OF_ANOTHER_PROCESS: Final = frozenset(
    {
        *("ROLLCAST_TOKEN_FILE", "ROLLCAST_TOKENS_FILE", "ROLLCAST_DISCOUNT", "ROLLCAST_DEVICE", "ROLLCAST_TIMEOUT_S"),
        *(
            "ROLLCAST_STEP_TIMEOUT_S",
            "ROLLCAST_STOP_TIMEOUT_S",
            "ROLLCAST_CONNECT_TIMEOUT_S",
            "ROLLCAST_COLLECT_TIMEOUT_S",
        ),
        *("ROLLCAST_ACTOR_ID", "ROLLCAST_ACTOR_KIND", "ROLLCAST_N_ACTORS", "ROLLCAST_MIN_ACTORS"),
        *("ROLLCAST_MAX_ROLLOUT_BYTES", "ROLLCAST_NAME", "ROLLCAST_NAMES"),
        *("ROLLCAST_CHECK", "ROLLCAST_HOST", "ROLLCAST_METRIC", "ROLLCAST_OUT", "ROLLCAST_OVER", "ROLLCAST_POLICY"),
        *("ROLLCAST_RUN", "ROLLCAST_TIME", "ROLLCAST_TOKEN", "ROLLCAST_N_RANKS"),
    }
)

_MOST_SHOWN: Final = 200
# Messages have whole numbers as int64.
_MOST_WHOLE: Final = 2**63
_A_WHOLE_NUMBER: Final = "expected a whole number, such as 5000, 1e6 or 20M"
# The texts that replace pydantic's, by the type of the error.
_EXPECTED: Final = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float", "int_parsing_size"), _A_WHOLE_NUMBER),
    **dict.fromkeys(("float_parsing", "float_type"), "expected a number, such as 0.5 or 3e-4"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "expected true or false"),
    "finite_number": "expected a finite number",
    "greater_than": "expected a number above {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected a number below {lt}",
    "less_than_equal": "expected at most {le}",
    "literal_error": "expected {expected}",
    "string_type": "expected text",
    "path_type": "expected a path",
    "dict_type": "expected names with values",
    "model_type": "expected a group of settings",
    "tuple_type": "expected a list",
    "too_long": "expected at most {max_length} values",
    "too_short": "expected at least {min_length} values",
}


def _parse_json_object(value: object) -> object:
    if isinstance(value, str):
        try:
            return json.loads(value, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            raise ValueError(f'not JSON ({error}); expected an object such as {{"gravity": 9.8}}') from error
    return value


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Returns a JSON object, in which each name may be once, as in a YAML file."""
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"the name {name!r} is given twice")
        members[name] = value
    return members


EntryPointKwargs = Annotated[dict[str, Any], BeforeValidator(_parse_json_object)]

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class _Environment(EnvSettingsSource):
    """Reads `ROLLCAST_*` variables."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ANN401 - pydantic's
        """Decodes JSON. Passes other text to the setting, which accepts comma-separated lists and explains errors."""
        if not value.lstrip().startswith(("[", "{")):
            return value
        try:
            return json.loads(value, object_pairs_hook=_object)
        except (ValueError, RecursionError):
            return value


class _CommandLine(_Environment, CliSettingsSource[Any]):
    """Reads the command line, with lists and objects in the form of variables."""


class _Unusable:
    """Replaces a text that is no possible value of a setting, so that validation refuses it.

    Args:
        text: The text.
        expected: The expectation in the message; empty: that of the setting's type.
    """

    def __init__(self, text: str, expected: str = "") -> None:
        self._text = text
        self.expected = expected

    def __repr__(self) -> str:
        return repr(self._text)


class ProcessSettings(BaseSettings):
    """Base of every process's settings.

    Unknown options are errors on the command line and in the file. An unknown `ROLLCAST_*` variable is an error if it
    resembles a variable of this process, and a warning if it is the beginning of one. Variables of other processes are
    allowed, because processes often share an environment.

    Attributes:
        first_options: The settings that `--help` shows, in order, nested settings as `impala.learning_rate`.
            `--help-all` shows all settings. Empty: `--help` shows all settings.
    """

    model_config = SettingsConfigDict(
        env_prefix="ROLLCAST_",
        env_nested_delimiter="__",
        env_parse_none_str="None",
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        validate_default=True,
    )

    first_options: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Orders the sources: command line (first in pydantic-settings), arguments, environment, file, preset."""
        del env_settings, dotenv_settings, file_secret_settings
        read, *beside = _BESIDE.get()
        plain = (InitSettingsSource(settings_cls, dict(values)) for values in beside if read is settings_cls)
        return init_settings, _Environment(settings_cls, env_ignore_empty=True), *plain

    @model_validator(mode="before")
    @classmethod
    def _read_texts(cls, values: dict[str, Any]) -> dict[str, Any]:
        return _with_texts_read(cls, values)

    @classmethod
    def from_command_line(cls, program: str, arguments: Sequence[str]) -> Self:
        """Reads the settings of one process.

        Args:
            program: The beginning of the command line, for the help, such as `"rollcast train"`.
            arguments: The rest of the command line.

        Raises:
            ConfigurationError: Options, variables or fields are wrong. The message contains the name, value and
                expectation of each.
            SystemExit: With code 0, after `--help` or `--help-all`.
        """
        rest, file = take_config(arguments)
        origins = Origins(arguments=rest, from_file={} if file is None else _read_config(file), file=file)
        origins = dataclasses.replace(origins, preset=cls.preset(origins))
        scope = cls.help_scope(origins)
        if not {"-h", HELP, HELP_ALL}.isdisjoint(rest):
            width = 100 if sys.stdout.isatty() else 120
            everything = HELP_ALL in rest
            text = help_text(program, cls, scope, cls.first_options, everything=everything, width=width)
            write_output(sys.stdout, text)
            raise SystemExit(0)
        if misspelt := _misspelt_variables(cls, origins, scope):
            raise ConfigurationError("\n".join(misspelt))
        given = _BESIDE.set((cls, origins.from_file, origins.preset))
        try:
            with _READING:
                parser, source = _command_line(cls)
                parser.expect(program, scope.spellings(cls))
                source(args=rest)
                settings = cls(_cli_settings_source=source)
        except ValidationError as error:
            told = describe_validation_error(error, cls, origins, scope.spellings(cls))
            raise ConfigurationError(told) from error
        finally:
            _BESIDE.reset(given)
        return settings.completed(origins)

    @classmethod
    def preset(cls, origins: Origins) -> Mapping[str, Any]:
        """Returns values that replace defaults, from a preset such as a recipe. A subclass may override this method.

        Args:
            origins: The source of each value.

        Raises:
            ConfigurationError: The preset does not exist.
        """
        del origins
        return {}

    def completed(self, origins: Origins) -> Self:
        """Returns the settings, with the values that depend on several settings. A subclass may override this method.

        Args:
            origins: The source of each value.

        Raises:
            ConfigurationError: Settings contradict each other.
        """
        del origins
        return self

    @classmethod
    def help_scope(cls, origins: Origins) -> HelpScope:
        """Returns the settings that apply to the given values."""
        del origins
        return HelpScope()


# The class whose settings are being read, the values in its file, and its preset.
_BESIDE: Final[ContextVar[tuple[type[ProcessSettings] | None, Mapping[str, Any], Mapping[str, Any]]]] = ContextVar(
    "beside", default=(None, {}, {})
)


# Guards the result of `_command_line`, which keeps the arguments until the settings are made.
_READING: Final = threading.RLock()


@functools.cache
def _command_line(settings: type[ProcessSettings]) -> tuple[CommandLineParser, _CommandLine]:
    """Builds the parser of a class, which is slower than parsing, and the source that uses it."""
    parser = CommandLineParser(HelpScope().spellings(settings))
    return parser, _CommandLine(settings, root_parser=parser)


def describe_validation_error(
    error: ValidationError,
    settings: type[BaseModel] | None = None,
    origins: Origins | None = None,
    applicable: Sequence[str] = (),
) -> str:
    """Returns one line for each wrong field, with option, value, source, expectation and advice.

    Args:
        error: The error.
        settings: The class that failed validation; None: the lines suggest no names.
        origins: The sources of the values; None: the lines contain no sources.
        applicable: The applicable options. The lines suggest them first.
    """
    lines = []
    arguments = () if settings is None else [option.path for option in options_of(settings) if option.positional]
    for detail in error.errors():
        # a member of a list is identified by its value
        path = [part for part in detail["loc"] if isinstance(part, str)]
        option = path[0].upper() if tuple(path) in arguments else option_name(path)
        source = "" if origins is None else origins.describe(path)
        if detail["type"] == "extra_forbidden":
            guess = did_you_mean(option, _names(settings), applicable, shown=_as_in_file(beside=path))
            lines.append(f"{'.'.join(path)}{source}: there is no such setting; {guess or f'{HELP_ALL} lists them'}")
        elif detail["type"] == "missing":
            lines.append(f"{option}: it is not given; expected a value; see {HELP} for its meaning")
        elif not path:  # all settings together
            lines.append(_expectation(detail))
        elif detail["type"] == "value_error" and isinstance(detail["input"], Mapping | BaseModel):  # a group together
            told = _expectation(detail)
            named = [] if origins is None else [origins.describe([*path, name]) for name in re.findall(r"\w+", told)]
            source = "".join(dict.fromkeys(named))
            kind = None if settings is None or len(path) > 1 else bare_type(settings.model_fields[path[0]].annotation)
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                told = with_options(told, path, kind)
            is_named = not source and told.startswith(f"{option}.")
            lines.append(told if is_named else f"{option}{source}: {told}")
        else:
            # Messages must not show a token, even a wrong one.
            value = "what is given" if path == ["token"] else _shown(detail["input"])
            lines.append(f"{option}: {value} is not valid{source}: {_expectation(detail)}")
    return "\n".join(lines)


def _shown(value: object) -> str:
    """Returns a value for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _expectation(detail: ErrorDetails) -> str:
    """Describes the expected value, in rollcast's words instead of pydantic's."""
    context = detail.get("ctx", {})
    if isinstance(detail["input"], _Unusable) and detail["input"].expected:
        return detail["input"].expected
    if detail["type"] not in _EXPECTED:
        return detail["msg"].removeprefix("Value error, ")
    bounds = {
        name: int(value) if value == int(value) else value for name, value in context.items() if type(value) is float
    }
    expected = _EXPECTED[detail["type"]].format_map({**context, **bounds})
    guess = did_you_mean(str(detail["input"]), re.findall("'([^']*)'", context.get("expected", "")))
    return f"{expected}; {guess}" if guess else expected


def _names(settings: type[BaseModel] | None) -> list[str]:
    """Returns the options of all settings and of their groups."""
    if settings is None:
        return []
    return [
        *(option_name((name,)) for name in settings.model_fields),
        *(option.name for option in options_of(settings)),
    ]


def _path(option: str) -> list[str]:
    """Returns the path of an option's setting."""
    return option.removeprefix("--").replace("-", "_").split(".")


def _as_in_file(beside: Sequence[str]) -> Callable[[str], str]:
    """Returns a function that writes an option as it would be in a file, beside another setting."""

    def shown(option: str) -> str:
        path = _path(option)
        return path[-1] if path[:-1] == list(beside[:-1]) else ".".join(path)

    return shown


def _misspelt_variables(settings: type[BaseModel], origins: Origins, scope: HelpScope) -> list[str]:
    """Returns a line for each unknown variable that resembles one of this process; warns of the beginning of one."""
    known = [option.name for option in options_of(settings)]
    lines = []
    for variable in sorted(origins.variables() - _OF_ANOTHER_PROCESS):
        path = variable.removeprefix("ROLLCAST_").lower().split("__")
        option = option_name(path)
        if path[0] in settings.model_fields:
            continue
        is_certain = is_misspelt(option, known)
        if not is_certain and not is_begun(option, known):
            continue
        guess = did_you_mean(option, known, scope.spellings(settings), shown=lambda name: variable_name(_path(name)))
        if is_certain:
            lines.append(f"{variable}: there is no such setting; {guess} Correct or unset it")
        else:
            logger.warning("%s is not a setting, and is ignored; %s", variable, guess)
    return lines


def _with_texts_read(settings: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the values of any source to the types of their settings."""
    read = dict(values)
    for name, field in settings.model_fields.items():
        kind = bare_type(field.annotation)
        if name not in values:
            continue
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if isinstance(values[name], Mapping):
                read[name] = _with_texts_read(kind, values[name])
        elif not values[name] == field.default == "":
            read[name] = _read(kind, values[name])
    return read


def _read(kind: Any, value: object) -> object:  # noqa: ANN401  # an annotation has no common type
    """Converts a value to a type: `1e6` to a number, `64,32` to a list."""
    if get_origin(kind) in (tuple, list) and isinstance(value, str | int | float):
        value = value.split(",") if isinstance(value, str) else [value]
    if isinstance(value, list) and (members := get_args(kind)):
        return [_read(bare_type(members[0]), member) for member in value]
    if isinstance(value, bool) and "on" in get_args(kind):
        return "on" if value else "off"  # as which YAML reads them
    if isinstance(value, bool) and kind in (int, float):
        return str(value).lower()  # pydantic takes true for 1
    if kind is int and isinstance(value, int | str):
        number = expand_whole_number(value) if isinstance(value, str) else value
        digits = str(number).strip().lstrip("+").replace("_", "")
        return _Unusable(str(value)) if digits.isdecimal() and Decimal(digits) >= _MOST_WHOLE else number
    if kind in (str, Path, SecretStr) and isinstance(value, str | Path):
        return _read_text(kind, value)
    return value


def _read_text(kind: type[str | Path | SecretStr], value: str | Path) -> object:
    text = str(value)
    if (isinstance(value, str) and not text) or "\0" in text:
        return _Unusable(text)
    # Settings and messages are UTF-8. Tokens have their own rules.
    if kind is not SecretStr and not is_utf8(text):
        return _Unusable(text, expected="expected UTF-8; choose another name or path")
    return value


def _read_config(file: Path) -> dict[str, Any]:
    # Imported here, because most processes have no file, and YAML takes time to import.
    from rollcast.services.settings.file import read_settings

    return read_settings(file, expected=f"a YAML file of settings for {CONFIG}", advice="correct the file")
