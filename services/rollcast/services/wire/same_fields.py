"""Copies the fields that a value and its message have under the same names."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any


def same_fields(value_class: type, *, but: Sequence[str] = ()) -> Callable[[object], dict[str, Any]]:
    """Makes a function that reads those fields of a value or of its message.

    The keyword arguments that it returns make the other of the two: `JoinRequest(**read(offer), substeps=...)`. A field
    that one of the two lacks is an error of Python or of protobuf at the first use.

    Args:
        value_class: The dataclass of the value.
        but: Its fields that a codec converts by itself.
    """
    names = tuple(field.name for field in dataclasses.fields(value_class) if field.name not in but)
    return lambda source: {name: getattr(source, name) for name in names}
