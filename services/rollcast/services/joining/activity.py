"""Defines an actor's time by state as values; field by field as `rollcast.v1.ActorActivity` documents them."""

import enum
from dataclasses import dataclass
from typing import Final

# An actor may say anything.
_MAX_CORES: Final = 1e6


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
    cpu_s: float = 0.0
    memory_bytes: int = 0
    answer_p50_s: float = 0.0
    answer_p99_s: float = 0.0


def cores_between(earlier: ActorActivity, later: ActorActivity) -> float:
    """Returns the cores that an actor kept busy between two of its reports; 0.0 if they do not say it."""
    seconds, cpu_s = sum(later.seconds) - sum(earlier.seconds), later.cpu_s - earlier.cpu_s
    return min(cpu_s / seconds, _MAX_CORES) if seconds > 0.0 and earlier.cpu_s and cpu_s >= 0.0 else 0.0


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
