"""Defines an actor's time by state as values; field by field as `rollcast.v1.ActorActivity` documents them."""

import enum
from dataclasses import dataclass


class ActingState(enum.Enum):
    """The work of an actor's main thread."""

    CONNECTING = 1
    ACTING = 2
    SENDING = 3
    WAITING_FOR_CREDIT = 4
    WAITING_FOR_POLICY = 5
    LOADING_POLICY = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorActivity:
    """An actor's time by state: the seconds in each, by its number, since its process started."""

    state: ActingState
    seconds: tuple[float, ...]
    policy_version: int = 0
    policy_age_s: float = 0.0
    dropped_episodes: int = 0
