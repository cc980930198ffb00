"""Observation and action spaces: their leaves, their agreement, their protobuf form."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

FLAT_SUBSTEP = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstepSpaces:
    """What the actor of one substep sees and does."""

    observation: gymnasium.Space[Any]
    action: gymnasium.Space[Any]


EnvironmentSpaces = Mapping[str, SubstepSpaces]
