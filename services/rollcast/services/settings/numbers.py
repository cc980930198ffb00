"""Kinds of numbers that several settings are, with their bounds."""

from typing import Annotated, TypeAlias

from pydantic import Field

AtLeastOne: TypeAlias = Annotated[int, Field(ge=1)]
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**32)]

# Intervals; "below" excludes the end.
ZeroToOne: TypeAlias = Annotated[float, Field(ge=0, le=1)]
AboveZeroToOne: TypeAlias = Annotated[float, Field(gt=0, le=1)]
ZeroToBelowOne: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
PositiveOrInfinite: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=True)]
