"""Reads and writes settings as plain YAML, for a run or for `--config`.

The cost of reading is at most proportional to the file's length.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from rollcast.services.errors import ConfigurationError
from rollcast.services.process.named_files import read_named_file
from rollcast.services.process.utf8 import is_utf8

# A run's settings have 3 KiB. A file of this size takes 0.1 s of a core with libyaml, 10 s without it.
MAX_SETTINGS_BYTES: Final = 1 << 17
_MAX_DEPTH: Final = 32
# Parsing a number takes time that grows with the square of its length.
_MAX_NUMBER_CHARACTERS: Final = 400
_NUMBERS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_TEXT: Final = "tag:yaml.org,2002:str"
_DATE: Final = "tag:yaml.org,2002:timestamp"
# Numbers that YAML 1.1 reads as octal or sexagesimal.
_UNLIKELY_NUMBER: Final = re.compile(r"[-+]?0[0-7_]+|.*:.*")

# yaml's wheels contain libyaml; a build from source without it does the same in Python.
_Loader: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SafeDumper: Final[type[Any]] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _NotPlainError(ValueError):
    """The settings are not plain YAML. The message begins with the line, if known."""


class _Dumper(_SafeDumper):  # type: ignore[misc]  # the base depends on the build of yaml
    """Writes repeated values in full, because the reader refuses aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def encode_settings(settings: Mapping[str, Any]) -> bytes:
    """Returns settings as YAML.

    Args:
        settings: Plain values, lists and mappings.

    Raises:
        ConfigurationError: `read_settings` would refuse the settings.
    """
    for name, text in _texts(settings):
        if not is_utf8(text):
            raise ConfigurationError(
                f"{name} is {text!a}, which is not UTF-8; expected UTF-8, because the run's settings are stored in a "
                "YAML file; choose another name or path"
            )
    content = yaml.dump(dict(settings), Dumper=_Dumper, sort_keys=False).encode()
    try:
        _checked(content)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(
            f"the settings of this run could not be read again: {error}; expected smaller settings; shorten "
            "--env-kwargs"
        ) from error
    return content


def read_settings(path: Path, *, expected: str, advice: str) -> dict[str, Any]:
    """Reads a file of settings.

    Args:
        path: The file.
        expected: The kind of file, for messages, such as "the settings of a run".
        advice: The advice in messages.

    Returns:
        Plain values by name; empty for a file with only comments.

    Raises:
        ConfigurationError: The file cannot be read, or is not a mapping of names to plain values. The message contains
            the file, and the line if known.
    """
    try:
        content = read_named_file(path, MAX_SETTINGS_BYTES)
        loader = _Loader(_checked(content))
        try:
            node = loader.get_single_node()
            settings = None if node is None else loader.construct_document(_checked_node(node, loader))
        finally:
            loader.dispose()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f", line {line}: byte 0x{content[error.start]:02x} is not UTF-8"
        raise _unreadable(path, problem, expected, advice) from error
    except yaml.MarkedYAMLError as error:
        raise _unreadable(path, _yaml_problem(error), expected, advice) from error
    except OSError as error:
        raise _unreadable(path, f" cannot be read: {error.strerror}", expected, advice) from error
    except _NotPlainError as error:
        raise _unreadable(path, f", {error}", expected, advice) from error
    # ArithmeticError comes from a number above every float.
    except (ValueError, ArithmeticError, yaml.YAMLError) as error:
        raise _unreadable(path, f": {error}", expected, advice) from error
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        what = type(settings).__name__
        raise _unreadable(path, f" holds a {what}, not a mapping of names to values", expected, advice)
    return settings


def _texts(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields every text in settings, with its name: `env_kwargs.maps.0`."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping | list | tuple):
        for key, member in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _texts(member, f"{name}.{key}".removeprefix("."))


def _unreadable(path: Path, problem: str, expected: str, advice: str) -> ConfigurationError:
    return ConfigurationError(f"{str(path)!r}{problem}; expected {expected}; {advice}")


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    """Returns the line and its problem as one line of text."""
    mark = error.problem_mark or error.context_mark
    where = f", line {mark.line + 1}" if mark is not None else ""
    return f"{where}: {' '.join(filter(None, (error.problem, error.context)))}"


def _checked(content: bytes) -> str:
    """Checks that the content is plain YAML, without tags and without values that expand. Returns its text.

    Raises:
        _NotPlainError: The YAML is not plain.
        yaml.YAMLError: The content is not YAML.
    """
    if len(content) > MAX_SETTINGS_BYTES:
        raise _NotPlainError(f"above {MAX_SETTINGS_BYTES} bytes")
    text = content.decode()
    loader = _Loader(text)
    try:
        depth = 0
        while loader.check_event():
            event = loader.get_event()
            line = event.start_mark.line + 1
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise _NotPlainError(f"line {line} is nested deeper than {_MAX_DEPTH} mappings and lists")
            if getattr(event, "anchor", None) is not None:
                raise _NotPlainError(
                    f"line {line} has the anchor or alias {event.anchor!r:.80} instead of a plain value"
                )
            if getattr(event, "tag", None) is not None:
                raise _NotPlainError(f"line {line} has the tag {event.tag!r:.80} instead of a plain value")
            if _is_long(event) and loader.resolve(yaml.ScalarNode, event.value, event.implicit) in _NUMBERS:
                raise _NotPlainError(f"line {line} has a number of {len(event.value)} characters")
    finally:
        loader.dispose()
    return text


def _is_long(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and len(event.value) > _MAX_NUMBER_CHARACTERS


def _checked_node(node: yaml.Node, loader: Any) -> yaml.Node:  # noqa: ANN401 - one of yaml's loaders
    """Checks a node for values that YAML would probably misread. Returns the node.

    Raises:
        _NotPlainError: A mapping has a name twice, or a name that is not text. A value is a date, or an octal or
            sexagesimal number.
    """
    if isinstance(node, yaml.MappingNode):
        lines: dict[object, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise _NotPlainError(f"line {line} has a {key.id} as a name, not text")
            if key.tag != _TEXT:
                raise _NotPlainError(
                    f"line {line} has the name {key.value:.80}, which YAML does not read as text; write "
                    f"{key.value!r:.80}"
                )
            if key.value in lines:
                raise _NotPlainError(f"line {line} has {key.value!r:.80} again, after line {lines[key.value]}")
            lines[key.value] = line
            _checked_node(value, loader)
    elif isinstance(node, yaml.SequenceNode):
        for member in node.value:
            _checked_node(member, loader)
    elif node.tag == _DATE:
        raise _NotPlainError(f"line {node.start_mark.line + 1} has the date {node.value}; write {node.value!r}")
    elif node.tag in _NUMBERS and _UNLIKELY_NUMBER.fullmatch(node.value):
        number = loader.construct_object(node)
        raise _NotPlainError(
            f"line {node.start_mark.line + 1} has the number {node.value}, which YAML reads as {number}; write "
            f"{number} or {node.value!r}"
        )
    return node
