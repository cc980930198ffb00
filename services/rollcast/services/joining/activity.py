"""Defines an actor's reports on its time in each state, and on its failure."""

import enum
from dataclasses import dataclass
from typing import Final

# An actor may report any number.
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
    """The time that an actor spent in each state. `rollcast.v1.ActorActivity` documents the fields."""

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
    """Returns the number of cores that an actor kept busy between two of its reports; 0.0 if unknown."""
    seconds, cpu_s = sum(later.seconds) - sum(earlier.seconds), later.cpu_s - earlier.cpu_s
    return min(cpu_s / seconds, _MAX_CORES) if seconds > 0.0 and earlier.cpu_s and cpu_s >= 0.0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorFailure:
    """An exception in an actor.

    Attributes:
        exception_type: The exception's class, for example `"ValueError"`.
        message: The exception's message.
        traceback: The exception's traceback, as text.
        env_seed: The seed of the environments when the exception occurred.
    """

    exception_type: str
    message: str
    traceback: str
    env_seed: int = 0
