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


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorFailure:
    """An exception in an actor.

    Attributes:
        exception_type: Its class, for example `"ValueError"`.
        message: Its message.
        traceback: Its traceback, as text.
        env_seed: The seed of the environments at that time.
    """

    exception_type: str
    message: str
    traceback: str
    env_seed: int = 0
