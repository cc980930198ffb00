"""Defines the reduced events of an episode as values: the declared statistics, and their numbers."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from rollcast.services.limits.limits import MAX_NAME_LENGTH
from rollcast.services.limits.texts import quoted

# "own" is a user's function, known only to processes that have the interface class.
Reduction: TypeAlias = Literal["mean", "std", "min", "max", "sum", "count", "median", "own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStatistic:
    """A statistic of an epoch, computed from the values of its episodes.

    Attributes:
        name: Its name among the event's statistics of epochs; empty if there is only one.
        reduction: The function that reduces the values.
        cumulative: Whether it covers all epochs instead of one.
    """

    name: str
    reduction: Reduction
    cumulative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatistic:
    """A statistic of an episode, computed from the occurrences of an event.

    Attributes:
        event: The event's name.
        name: Its name among the event's statistics of episodes; empty if there is only one.
        epoch: The statistics of epochs that are computed from it.
    """

    event: str
    name: str
    epoch: tuple[EpochStatistic, ...]


class EventValue(NamedTuple):
    """The value of a statistic for one episode. A tuple, like `EpisodeStatistics`, for its speed.

    Attributes:
        statistic: The statistic.
        group: The values of the grouping attributes as texts; empty without grouping.
        value: The finite value.
    """

    statistic: EventStatistic
    group: tuple[str, ...]
    value: float


def name_problem(name: str) -> str | None:
    """Returns the mistake in the name of an event, statistic or group; None if it is valid."""
    if len(name) > MAX_NAME_LENGTH:
        return f"{quoted(name)} of {len(name)} characters"
    return None if name.isprintable() else repr(name)
