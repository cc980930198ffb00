"""The settings of a run as YAML: whatever a file of them holds, reading it takes no more than its length is worth."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from services.errors import ConfigurationError

# A run's settings take 3 KiB. 0.1 s of a core with libyaml, 10 s without it.
MAX_SETTINGS_BYTES: Final = 1 << 17
_MAX_DEPTH: Final = 32
# Longer ones take time that grows as the square of it, and cannot be shown in a message.
_MAX_NUMBER_CHARACTERS: Final = 400
_NUMBERS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})

# yaml's wheels have libyaml; what is built from source without it has the same loader in Python
_Loader: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Dumper(yaml.SafeDumper):
    """Writes in full what comes twice: aliases are refused when they are read."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def encode_settings(settings: Mapping[str, Any]) -> bytes:
    """As YAML.

    Args:
        settings: Plain values, lists and mappings.

    Raises:
        ConfigurationError: `read_settings` would refuse them.
    """
    content = yaml.dump(dict(settings), Dumper=_Dumper, sort_keys=False).encode()
    try:
        _checked(content)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(
            f"the settings of this run could not be read again: {error}; expected no more in them; pass less to the "
            "environment by --env-kwargs"
        ) from error
    return content


def read_settings(path: Path) -> dict[str, Any]:
    """Reads what `encode_settings` made, or anything else.

    Raises:
        ConfigurationError: There is no file, or it is no mapping of names to plain values.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SETTINGS_BYTES + 1)
        loader = _Loader(_checked(content))
        try:
            settings = loader.get_single_data()
        finally:
            loader.dispose()
    # ValueError: no UTF-8, or a date of a thirteenth month; ArithmeticError: a number above every float
    except (OSError, ValueError, ArithmeticError, yaml.YAMLError) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error}; expected the settings of a run. Restore the file."
        ) from error
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise ConfigurationError(
            f"{path} holds a {type(settings).__name__}; expected a mapping of names to values. Restore the file."
        )
    return settings


def _checked(content: bytes) -> str:
    """The text, which has nothing that takes more to build, or to show, than to write down, and no tags.

    Raises:
        ValueError: It has.
        yaml.YAMLError: It is no YAML.
    """
    if len(content) > MAX_SETTINGS_BYTES:
        raise ValueError(f"there are more than {MAX_SETTINGS_BYTES} bytes of them")
    text = content.decode()
    loader = _Loader(text)
    try:
        depth = 0
        while loader.check_event():
            event = loader.get_event()
            line = event.start_mark.line + 1
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise ValueError(f"line {line} is nested deeper than {_MAX_DEPTH} mappings and lists")
            if getattr(event, "anchor", None) is not None:
                raise ValueError(f"line {line} has the anchor or alias {event.anchor!r:.80}; expected plain values")
            if getattr(event, "tag", None) is not None:
                raise ValueError(f"line {line} has the tag {event.tag!r:.80}; expected plain values")
            if _is_long(event) and loader.resolve(yaml.ScalarNode, event.value, event.implicit) in _NUMBERS:
                raise ValueError(f"line {line} has a number of {len(event.value)} characters")
    finally:
        loader.dispose()
    return text


def _is_long(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and len(event.value) > _MAX_NUMBER_CHARACTERS
