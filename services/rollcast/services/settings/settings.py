"""Defines the base of every process's settings: command line, then environment, then file, then default."""

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.command_line import CONFIG, HELP, HELP_ALL, CommandLineParser, take_config
from rollcast.services.settings.help_text import HelpScope, help_text
from rollcast.services.settings.numbers import expand_whole_number
from rollcast.services.settings.options import bare_type, option_name, options_of, variable_name
from rollcast.services.settings.origins import Origins
from rollcast.services.settings.suggestions import did_you_mean, is_misspelt

# Variables that another process reads, and whose names resemble those of a setting that a process lacks.
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
        *("ROLLCAST_MAX_ROLLOUT_BYTES",),
    }
)

_A_WHOLE_NUMBER: Final = "expected a whole number, such as 5000, 1e6 or 20M"
# The words in place of pydantic's own, by the type of its error.
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
}


def _parse_json_object(value: object) -> object:
    if isinstance(value, str):
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f'not JSON ({error}); expected an object such as {{"gravity": 9.8}}') from error
    return value


EntryPointKwargs = Annotated[dict[str, Any], BeforeValidator(_parse_json_object)]

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class _Environment(EnvSettingsSource):
    """Reads `ROLLCAST_*` variables; a list may also be written with commas, as on the command line."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ANN401 - pydantic's
        """Decodes a value that is more than a text or a number."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            # Left as it is: its validator explains the error.
            return value.split(",") if get_origin(field.annotation) is tuple else value


class ProcessSettings(BaseSettings):
    """Base of every process's settings.

    Unknown options are errors on the command line and in the file. Unknown `ROLLCAST_*` variables are errors if one of
    this process's must be meant; those of another process are not, since one environment often serves several.

    Attributes:
        first_options: The settings that the help shows, in order, nested ones as `impala.learning_rate`; `--help-all`
            shows all. Empty: the help shows all.
    """

    model_config = SettingsConfigDict(
        env_prefix="ROLLCAST_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
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

    _from_file: ClassVar[Mapping[str, Any]] = {}
    _preset: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Orders the sources: command line (pydantic-settings puts it first), arguments, environment, file, preset."""
        del env_settings, dotenv_settings, file_secret_settings
        plain = (InitSettingsSource(settings_cls, dict(values)) for values in (cls._from_file, cls._preset))
        return init_settings, _Environment(settings_cls), *plain

    @model_validator(mode="before")
    @classmethod
    def _expand_whole_numbers(cls, values: dict[str, Any]) -> dict[str, Any]:
        return _with_whole_numbers(cls, values)

    @classmethod
    def from_command_line(cls, program: str, arguments: Sequence[str]) -> Self:
        """Reads the settings of one process.

        Args:
            program: The beginning of the command line, for the help: `"rollcast train"`.
            arguments: The rest of the command line.

        Raises:
            ConfigurationError: An option, variable or field is wrong; the message names each with its value and what
                was expected.
            SystemExit: From `--help` and `--help-all` (0).
        """
        rest, file = take_config(arguments)
        origins = Origins(arguments=rest, from_file={} if file is None else _read_config(file), file=file)
        origins = dataclasses.replace(origins, preset=cls.preset(origins))
        scope = cls.help_scope(origins)
        if not {"-h", HELP, HELP_ALL}.isdisjoint(rest):
            width = 100 if sys.stdout.isatty() else 120
            everything = HELP_ALL in rest
            sys.stdout.write(help_text(program, cls, scope, cls.first_options, everything=everything, width=width))
            raise SystemExit(0)
        if misspelt := _misspelt_variables(cls, origins, scope):
            raise ConfigurationError("\n".join(misspelt))
        # A new subclass, so that one call's file and preset do not affect the next.
        given = {"_from_file": origins.from_file, "_preset": origins.preset, "__module__": cls.__module__}
        reader = type(cls.__name__, (cls,), given)
        parser = CommandLineParser(program, HelpScope().spellings(cls), scope.spellings(cls))
        try:
            source: CliSettingsSource[Any] = CliSettingsSource(
                reader, cli_prog_name=program, cli_parse_args=rest, root_parser=parser
            )
            settings: Self = reader(_cli_settings_source=source)
        except ValidationError as error:
            told = describe_validation_error(error, cls, origins, scope.spellings(cls))
            raise ConfigurationError(told) from error
        except SettingsError as error:
            raise ConfigurationError(_describe_settings_error(error)) from error
        return settings.completed(origins)

    @classmethod
    def preset(cls, origins: Origins) -> Mapping[str, Any]:
        """Returns values that take the place of defaults because a setting names them; a subclass may override it.

        Args:
            origins: The values given.

        Raises:
            ConfigurationError: There is nothing by that name.
        """
        del origins
        return {}

    def completed(self, origins: Origins) -> Self:
        """Returns the settings with the values that depend on several of them; a subclass may override it.

        Args:
            origins: Where each value comes from.

        Raises:
            ConfigurationError: If settings contradict each other.
        """
        del origins
        return self

    @classmethod
    def help_scope(cls, origins: Origins) -> HelpScope:
        """Returns the settings that apply to the given values."""
        del origins
        return HelpScope()


def describe_validation_error(
    error: ValidationError,
    settings: type[BaseModel] | None = None,
    origins: Origins | None = None,
    applicable: Sequence[str] = (),
) -> str:
    """Returns one line for each wrong field: the option, the value and its source, what was expected, what to do.

    Args:
        error: The error.
        settings: The class that failed validation; None: no names are suggested.
        origins: The sources of the values; None: sources are not named.
        applicable: The options that apply here, which are suggested first.
    """
    lines = []
    for detail in error.errors():
        path = [str(part) for part in detail["loc"]]
        option = option_name(path)
        source = "" if origins is None else origins.describe(path)
        if detail["type"] == "extra_forbidden":
            guess = did_you_mean(option, _names(settings), applicable, shown=_as_in_file(beside=path))
            lines.append(f"{'.'.join(path)}{source}: there is no such setting; {guess or f'{HELP_ALL} lists them'}")
        elif detail["type"] == "missing":
            lines.append(f"{option}: it is not given; expected a value; see {HELP} for what it is")
        elif not path:  # all settings together
            lines.append(_expectation(detail))
        else:
            # A token must not be shown, even if it is wrong.
            value = "what is given" if path == ["token"] else repr(detail["input"])
            lines.append(f"{option}: {value} is not valid{source}: {_expectation(detail)}")
    return "\n".join(lines)


def _expectation(detail: ErrorDetails) -> str:
    """Returns what a value should have been, without pydantic's words for it."""
    context = detail.get("ctx", {})
    if detail["type"] not in _EXPECTED:
        return detail["msg"].removeprefix("Value error, ")
    bounds = {
        name: int(value) if value == int(value) else value for name, value in context.items() if type(value) is float
    }
    expected = _EXPECTED[detail["type"]].format_map({**context, **bounds})
    guess = did_you_mean(str(detail["input"]), re.findall("'([^']*)'", context.get("expected", "")))
    return f"{expected}; {guess}" if guess else expected


def _names(settings: type[BaseModel] | None) -> list[str]:
    """Returns the options of all settings, and of the groups that they are in."""
    if settings is None:
        return []
    return [
        *(option_name((name,)) for name in settings.model_fields),
        *(option.name for option in options_of(settings)),
    ]


def _path(option: str) -> list[str]:
    """Returns the setting of an option."""
    return option.removeprefix("--").replace("-", "_").split(".")


def _as_in_file(beside: Sequence[str]) -> Callable[[str], str]:
    """Returns what writes an option as a file would have it at the place of another setting."""

    def shown(option: str) -> str:
        path = _path(option)
        return path[-1] if path[:-1] == list(beside[:-1]) else ".".join(path)

    return shown


def _misspelt_variables(settings: type[BaseModel], origins: Origins, scope: HelpScope) -> list[str]:
    """Returns a line for each variable that is nobody's, and with which one of this process's must be meant."""
    known = [option.name for option in options_of(settings)]
    lines = []
    for variable in sorted(origins.variables() - _OF_ANOTHER_PROCESS):
        path = variable.removeprefix("ROLLCAST_").lower().split("__")
        option = option_name(path)
        if path[0] not in settings.model_fields and is_misspelt(option, known):
            guess = did_you_mean(
                option, known, scope.spellings(settings), shown=lambda name: variable_name(_path(name))
            )
            lines.append(f"{variable}: there is no such setting; {guess} Correct or unset it")
    return lines


def _with_whole_numbers(settings: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values with whole numbers that are written as text, such as `1e6`, as numbers."""
    read = dict(values)
    for name, field in settings.model_fields.items():
        kind, value = bare_type(field.annotation), values.get(name)
        if kind is int and isinstance(value, str):
            read[name] = expand_whole_number(value)
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping):
            read[name] = _with_whole_numbers(kind, value)
    return read


def _describe_settings_error(error: SettingsError) -> str:
    """Returns pydantic-settings' error about an unreadable value, after the name of its option."""
    found = re.match(r"Parsing error encountered for ([\w.]+): (.*)", str(error))
    if found is None:
        return f"a setting cannot be read: {error}; see {HELP} for what is expected"
    option = option_name(found[1].split("."))
    return f"{option}: its value cannot be read ({found[2]}); expected JSON, such as '{{\"gravity\": 9.8}}'; correct it"


def _read_config(file: Path) -> dict[str, Any]:
    # Imported here: most processes have no file, and YAML takes time to import.
    from rollcast.services.settings.file import read_settings

    return read_settings(file, expected=f"a YAML file of settings for {CONFIG}", advice="correct the file")
