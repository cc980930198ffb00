"""Copies the fields with the same names between a value and its message."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any


def same_fields(value_class: type, *, but: Sequence[str] = ()) -> Callable[[object], dict[str, Any]]:
    """Makes a function that reads the common fields from a value or from its message.

    The function returns keyword arguments for the message or the value: `JoinRequest(**read(offer), substeps=...)`. If
    either lacks a field, Python or protobuf raises at the first use.

    Args:
        value_class: The dataclass of the value.
        but: The fields that a codec converts separately.
    """
    names = tuple(field.name for field in dataclasses.fields(value_class) if field.name not in but)
    return lambda source: {name: getattr(source, name) for name in names}
