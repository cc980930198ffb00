"""Events of episodes, and how an epoch reduces their values.

An event is a method of an interface class; firing it is calling it. Decorators on the method declare the statistics
that an epoch makes of its values.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

Statistic = int | float
Reduce = Callable[[Sequence[Any]], Any]

_Event = TypeVar("_Event", bound=Callable[..., None])
_ATTRIBUTE = "__rollcast_epoch_stats__"


class LogStatsLevel(enum.Enum):
    """Over what a statistic is taken."""

    STEP = 1
    EPISODE = 2
    EPOCH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStat:
    """One statistic of an event.

    Attributes:
        reduce: From the values of an epoch to one; of a cumulative statistic, from its last value and them.
        output_name: Its name among the event's statistics; None for an event with only one.
        cumulative: Over all epochs instead of one.
    """

    reduce: Reduce
    output_name: str | None
    cumulative: bool


def define_epoch_stats(
    reduce: Reduce, output_name: str | None = None, *, cumulative: bool = False
) -> Callable[[_Event], _Event]:
    """Declares a statistic of an event; stack several for several statistics.

    Args:
        reduce: From the values of an epoch to one, for example `max`.
        output_name: Its name; needed where an event has several.
        cumulative: Carry it on from epoch to epoch: `reduce` then gets its last value and the new ones.

    Returns:
        The decorator.
    """

    def decorate(event: _Event) -> _Event:
        # Decorators apply from the bottom up; statistics are listed from the top down.
        stats = (EpochStat(reduce=reduce, output_name=output_name, cumulative=cumulative), *epoch_stats_of(event))
        setattr(event, _ATTRIBUTE, stats)
        return event

    return decorate


def epoch_stats_of(event: Callable[..., Any]) -> tuple[EpochStat, ...]:
    """The statistics declared for an event, in the order they are written.

    Args:
        event: A method of an interface class.

    Returns:
        Its statistics; none for what is no event.
    """
    stats: tuple[EpochStat, ...] = getattr(event, _ATTRIBUTE, ())
    return stats


class EpisodeEvents(ABC):
    """What happens when an episode ends."""

    @abstractmethod
    @define_epoch_stats(np.mean, "mean")
    @define_epoch_stats(np.std, "std")
    @define_epoch_stats(min, "min")
    @define_epoch_stats(max, "max")
    def episode_return(self, value: float) -> None:
        """The sum of the episode's rewards."""

    @abstractmethod
    @define_epoch_stats(np.mean, "mean")
    @define_epoch_stats(np.median, "median")
    @define_epoch_stats(min, "min")
    @define_epoch_stats(max, "max")
    @define_epoch_stats(sum, "cumulative", cumulative=True)
    def episode_length(self, value: int) -> None:
        """The episode's number of steps."""

    @abstractmethod
    @define_epoch_stats(sum, "epoch")
    @define_epoch_stats(sum, "cumulative", cumulative=True)
    def episode_count(self, value: int) -> None:
        """That it ended: 1."""


def events_of(interface: type) -> dict[str, tuple[EpochStat, ...]]:
    """The events of an interface class.

    Args:
        interface: For example `EpisodeEvents`.

    Returns:
        The statistics of each, by name, in the order they are written.
    """
    return {name: epoch_stats_of(event) for name, event in vars(interface).items() if epoch_stats_of(event)}
