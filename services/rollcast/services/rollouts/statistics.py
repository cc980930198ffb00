"""Defines the reduced events of an episode: the declared statistics, and their values."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from rollcast.services.limits.limits import MAX_NAME_LENGTH
from rollcast.services.limits.texts import quoted

# "own" is a user's function. Only processes with the interface class have it.
Reduction: TypeAlias = Literal["mean", "std", "min", "max", "sum", "count", "median", "own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStatistic:
    """A statistic of an epoch, computed from the values of its episodes.

    Attributes:
        name: The statistic's name among the event's statistics of epochs; empty if there is only one.
        reduction: The function that reduces the values.
        cumulative: Whether the statistic covers all epochs instead of one epoch.
    """

    name: str
    reduction: Reduction
    cumulative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatistic:
    """A statistic of an episode, computed from the occurrences of an event.

    Attributes:
        event: The event's name.
        name: The statistic's name among the event's statistics of episodes; empty if there is only one.
        epoch: The statistics of epochs that are computed from this statistic.
    """

    event: str
    name: str
    epoch: tuple[EpochStatistic, ...]


class EventValue(NamedTuple):
    """The value of a statistic for one episode. Like `EpisodeStatistics`, it is a tuple for speed.

    Attributes:
        statistic: The statistic.
        group: The values of the grouping attributes, as text; empty without grouping.
        value: The finite value.
    """

    statistic: EventStatistic
    group: tuple[str, ...]
    value: float


def name_problem(name: str) -> str | None:
    """Describes the mistake in the name of an event, statistic or group; None if the name is valid."""
    if len(name) > MAX_NAME_LENGTH:
        return f"{quoted(name)} of {len(name)} characters"
    return None if name.isprintable() else repr(name)
