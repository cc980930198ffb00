"""What events come to in an episode, as values that travel: declarations of names and reductions, and numbers."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from rollcast.services.limits.limits import MAX_NAME_LENGTH

# "own": a function that only those know who have its interface class.
Reduction: TypeAlias = Literal["mean", "std", "min", "max", "sum", "count", "median", "own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStatistic:
    """What an epoch makes of the values of its episodes.

    Attributes:
        name: Its name among the event's statistics of epochs; empty where there is only one.
        reduction: How.
        cumulative: Over all epochs instead of one.
    """

    name: str
    reduction: Reduction
    cumulative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatistic:
    """What an episode makes of an event.

    Attributes:
        event: The event's name.
        name: Its name among the event's statistics of episodes; empty where there is only one.
        epoch: What epochs make of it.
    """

    event: str
    name: str
    epoch: tuple[EpochStatistic, ...]


class EventValue(NamedTuple):
    """What one episode came to. A tuple, like `EpisodeStatistics`, for its speed.

    Attributes:
        statistic: Of what.
        group: The texts of the grouping attributes' values; empty where nothing is grouped.
        value: Finite.
    """

    statistic: EventStatistic
    group: tuple[str, ...]
    value: float


def name_problem(name: str) -> str | None:
    """What is wrong with the name of an event, a statistic or a group, if anything is."""
    if len(name) > MAX_NAME_LENGTH:
        return f"{name[:32]!r}... of {len(name)} characters"
    return None if name.isprintable() else repr(name)
