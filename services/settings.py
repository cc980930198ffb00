"""One typed settings class a process: command line, then `ROLLCAST_*`, then `--config file.yaml`, then the default."""

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from services.errors import ConfigurationError


def _parse_json_object(value: object) -> object:
    if isinstance(value, str):
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f'not JSON ({error}); expected an object such as {{"gravity": 9.8}}') from error
    return value


EntryPointKwargs = Annotated[dict[str, Any], BeforeValidator(_parse_json_object)]


_OTHER_SOURCES = (
    "Each setting can also be given as ROLLCAST_<NAME> in the environment (ROLLCAST_A__B for --a.b), or in a YAML file "
    "named by --config FILE; the command line wins, then the environment, then the file."
)


class ProcessSettings(BaseSettings):
    """Base of every process's settings.

    Unknown options are errors on the command line and in the file. `ROLLCAST_*` variables that belong to another
    process are not: one environment often serves several.
    """

    model_config = SettingsConfigDict(
        env_prefix="ROLLCAST_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        validate_default=True,
    )

    _config_file: ClassVar[Path | None] = None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line (which pydantic-settings puts first by itself), arguments, environment, file."""
        del dotenv_settings, file_secret_settings
        sources = [init_settings, env_settings]
        if cls._config_file is not None:
            sources.append(YamlConfigSettingsSource(settings_cls, yaml_file=cls._config_file))
        return tuple(sources)

    @classmethod
    def from_command_line(cls, program: str, arguments: Sequence[str]) -> Self:
        """Reads the settings of one process.

        Args:
            program: What the user typed so far, for the help text: `"rollcast train"`.
            arguments: The rest of the command line.

        Raises:
            ConfigurationError: Names every field that is wrong, its value, and what was expected.
            SystemExit: From `--help` (0) and from an option that does not exist (2).
        """
        arguments, config_file = _take_config_option(list(arguments))
        if config_file is not None and not config_file.is_file():
            raise ConfigurationError(f"--config: no file at {str(config_file)!r}; expected a YAML file of settings")
        # a subclass of its own, so that no call leaves a file behind for the next
        reader = type(
            cls.__name__,
            (cls,),
            {"_config_file": config_file, "__module__": cls.__module__, "__doc__": f"{cls.__doc__} {_OTHER_SOURCES}"},
        )
        try:
            source: CliSettingsSource[Any] = CliSettingsSource(
                reader,
                cli_prog_name=program,
                cli_parse_args=arguments,
                root_parser=_parser(program, reader),
            )
            settings: Self = reader(_cli_settings_source=source)
        except ValidationError as error:
            raise ConfigurationError(describe_validation_error(error, arguments)) from error
        except SettingsError as error:
            raise ConfigurationError(f"a setting cannot be read: {error}; see --help for what is expected") from error
        return settings


def describe_validation_error(error: ValidationError, arguments: Sequence[str] = ()) -> str:
    """One line a field: the option, the value, what was expected, what to do."""
    lines = []
    for detail in error.errors():
        field = ".".join(str(part) for part in detail["loc"])
        option = "--" + field.replace("_", "-")
        if detail["type"] == "extra_forbidden":
            lines.append(f"{field}: there is no such setting; see --help for those that exist")
            continue
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "missing":
            lines.append(f"{option}: it is not given; expected a value; see --help for what it is")
            continue
        if not field:  # all settings together
            lines.append(message)
            continue
        where = (
            ""
            if any(f"{option}.".startswith(f"{argument.split('=')[0]}.") for argument in arguments)
            else (f" (from ROLLCAST_{field.replace('.', '__').upper()}, --config or a default)")
        )
        # a token is not to be shown, whatever is wrong with it
        value = "what is given" if field == "token" else repr(detail["input"])
        lines.append(f"{option}: {value} is not valid{where}: {message}")
    return "\n".join(lines)


def _take_config_option(arguments: list[str]) -> tuple[list[str], Path | None]:
    """Takes `--config FILE` out of the arguments: it says where the other settings are, so it is read before them."""
    for index, argument in enumerate(arguments):
        if argument == "--config":
            if index + 1 == len(arguments):
                raise ConfigurationError("--config: no file given; expected --config FILE.yaml")
            return arguments[:index] + arguments[index + 2 :], Path(arguments[index + 1])
        if argument.startswith("--config="):
            return arguments[:index] + arguments[index + 1 :], Path(argument.removeprefix("--config="))
    return arguments, None


def _parser(program: str, settings: type[ProcessSettings]) -> argparse.ArgumentParser:
    positional = "".join(
        f" {name.upper()}"
        for name, field in settings.model_fields.items()
        if any(isinstance(mark, type) and mark.__name__ == "_CliPositionalArg" for mark in field.metadata)
    )
    width = 100 if sys.stdout.isatty() else 120
    return argparse.ArgumentParser(
        prog=program,
        # not the list of all options: it would push the error that it accompanies off the screen
        usage=f"{program} [options]{positional}   (--help explains every option)",
        description=settings.__doc__,
        formatter_class=functools.partial(argparse.HelpFormatter, width=width, max_help_position=34),
    )
