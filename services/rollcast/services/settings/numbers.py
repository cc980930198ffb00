"""Defines the types of numbers in settings, with bounds, and short notations for large numbers."""

import re
from decimal import Decimal
from typing import Annotated, Final, TypeAlias

from pydantic import Field

AtLeastOne: TypeAlias = Annotated[int, Field(ge=1)]
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**32)]

# Intervals; "below" excludes the end.
ZeroToOne: TypeAlias = Annotated[float, Field(ge=0, le=1)]
AboveZeroToOne: TypeAlias = Annotated[float, Field(gt=0, le=1)]
ZeroToBelowOne: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
PositiveOrInfinite: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=True)]

_WHOLE_NUMBER: Final = re.compile(
    r"([0-9](?:_?[0-9]){0,14}(?:\.[0-9]{0,15})?(?:e\+?[0-9]{1,2})?)([kmg]?)", re.IGNORECASE
)
_THOUSANDS: Final = {"": 0, "k": 1, "m": 2, "g": 3}


def expand_whole_number(text: str) -> int | str:
    """Returns the value of a text such as `1e6`, `64k` or `20M`; returns any other text unchanged.

    Args:
        text: The typed number. k, M and G, in upper or lower case, are powers of 1000.
    """
    match = _WHOLE_NUMBER.fullmatch(text.strip())
    if match is None or text.isdecimal():
        return text
    number = Decimal(match[1]) * 1000 ** _THOUSANDS[match[2].lower()]
    return int(number) if number == number.to_integral_value() else text
