"""Decorators that declare events and their statistics of steps, episodes and epochs.

An event is a method of an interface class; calling the method fires the event.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rollcast.actor.statistics.reductions import Reduce, named_reduction
from rollcast.services.errors import StatisticsError

_Event = TypeVar("_Event", bound=Callable[..., None])
_ATTRIBUTE = "__rollcast_stats__"


class LogStatsLevel(enum.Enum):
    """The span of a statistic: a step, an episode or an epoch."""

    STEP = 1
    EPISODE = 2
    EPOCH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsDefinition:
    """One declared statistic of an event.

    Attributes:
        level: The statistic's span.
        reduce: The reduction, from many values to one.
        input_name: The statistic or attribute to reduce; None: there is only one.
        output_name: The statistic's name among the event's statistics of this level; None: there is only one.
        group_by: For episodes: the attributes that define the groups; None: those of `define_stats_grouping`.
        cumulative: For epochs: True: the statistic covers all epochs instead of one.
    """

    level: LogStatsLevel
    reduce: Reduce
    input_name: str | None
    output_name: str | None
    group_by: tuple[str, ...] | None = None
    cumulative: bool = False


@dataclass(frozen=True, slots=True)
class StatsGrouping:
    """The declared attributes by which an event's statistics are grouped."""

    attributes: tuple[str, ...]


def define_step_stats(
    reduce: Reduce, input_name: str | None = None, output_name: str | None = None
) -> Callable[[_Event], _Event]:
    """Returns a decorator that declares a statistic of steps: the reduction of one step's firings to one value.

    Args:
        reduce: `"mean"`, `"std"`, `"min"`, `"max"`, `"sum"`, `"count"`, `"median"`, the function of that name, or
            your own function, from a sequence of numbers to one number.
        input_name: The attribute to reduce; optional if there is only one attribute, and with `"count"`.
        output_name: The statistic's name; needed if the event has several statistics of steps.

    Returns:
        The decorator.

    Raises:
        StatisticsError: If `reduce` is neither a known name nor a function, or a name is empty.
    """
    return _declare(LogStatsLevel.STEP, reduce, input_name, output_name)


def define_episode_stats(
    reduce: Reduce,
    input_name: str | None = None,
    output_name: str | None = None,
    group_by: str | Sequence[str] | None = None,
) -> Callable[[_Event], _Event]:
    """Returns a decorator that declares a statistic of episodes: the reduction of an episode's steps to one value.

    Args:
        reduce: See `define_step_stats`.
        input_name: A statistic of steps; if no statistic has this name, an attribute of the event. Optional if there
            is only one, and with `"count"`.
        output_name: The statistic's name; needed if the event has several statistics of episodes.
        group_by: Attributes: each combination of their values has a separate statistic. None: the attributes of
            `define_stats_grouping`.

    Returns:
        The decorator.

    Raises:
        StatisticsError: See `define_step_stats`.
    """
    grouping = (group_by,) if isinstance(group_by, str) else None if group_by is None else tuple(group_by)
    return _declare(LogStatsLevel.EPISODE, reduce, input_name, output_name, group_by=grouping)


def define_epoch_stats(
    reduce: Reduce, input_name: str | None = None, output_name: str | None = None, *, cumulative: bool = False
) -> Callable[[_Event], _Event]:
    """Returns a decorator that declares a statistic of epochs: the reduction of an epoch's episodes to one value.

    Args:
        reduce: See `define_step_stats`. Register your own function at the learner, too: see
            `EpochStatsAggregator.register`.
        input_name: A statistic of episodes; optional if there is only one.
        output_name: The statistic's name; needed if the event has several statistics of epochs.
        cumulative: True: cover all epochs instead of one.

    Returns:
        The decorator. Use one decorator for each statistic.

    Raises:
        StatisticsError: See `define_step_stats`.
    """
    return _declare(LogStatsLevel.EPOCH, reduce, input_name, output_name, cumulative=cumulative)


def define_stats_grouping(*attributes: str) -> Callable[[_Event], _Event]:
    """Returns a decorator that groups an event's statistics by the values of attributes.

    Args:
        attributes: The names of the attributes.

    Returns:
        The decorator.
    """
    return _decorator(StatsGrouping(attributes))


def definitions_of(event: Callable[..., Any]) -> tuple[StatsDefinition | StatsGrouping, ...]:
    """Returns the declarations of an event, in the order of the decorators; empty: the method is not an event.

    Args:
        event: A method of an interface class.
    """
    definitions: tuple[StatsDefinition | StatsGrouping, ...] = getattr(event, _ATTRIBUTE, ())
    return definitions


def event_name(event: Callable[..., Any] | str) -> str:
    """Returns the name of an event, given the event's method or its name."""
    return event if isinstance(event, str) else str(getattr(event, "__name__", repr(event)))


def _declare(
    level: LogStatsLevel,
    reduce: Reduce,
    input_name: str | None,
    output_name: str | None,
    *,
    group_by: tuple[str, ...] | None = None,
    cumulative: bool = False,
) -> Callable[[_Event], _Event]:
    named_reduction(reduce)
    for name, value in (("input_name", input_name), ("output_name", output_name)):
        if value is not None and (not isinstance(value, str) or not value):
            raise StatisticsError(f"{name} is {value!r}; expected a name, or None; correct the decorator")
    return _decorator(
        StatsDefinition(
            level=level,
            reduce=reduce,
            input_name=input_name,
            output_name=output_name,
            group_by=group_by,
            cumulative=cumulative,
        )
    )


def _decorator(definition: StatsDefinition | StatsGrouping) -> Callable[[_Event], _Event]:
    def decorate(event: _Event) -> _Event:
        # Decorators apply from the bottom up; statistics are listed from the top down.
        setattr(event, _ATTRIBUTE, (definition, *definitions_of(event)))
        return event

    return decorate


class EpisodeEvents:
    """The events of every episode. rollcast fires them when an episode ends."""

    @define_epoch_stats("mean", output_name="mean")
    @define_epoch_stats("std", output_name="std")
    @define_epoch_stats("min", output_name="min")
    @define_epoch_stats("max", output_name="max")
    @define_episode_stats("sum")
    def episode_return(self, value: float) -> None:
        """The sum of the episode's rewards."""

    @define_epoch_stats("mean", output_name="mean")
    @define_epoch_stats("median", output_name="median")
    @define_epoch_stats("min", output_name="min")
    @define_epoch_stats("max", output_name="max")
    @define_epoch_stats("sum", output_name="cumulative", cumulative=True)
    @define_episode_stats("sum")
    def episode_length(self, value: int) -> None:
        """The episode's number of steps."""

    @define_epoch_stats("sum", output_name="epoch")
    @define_epoch_stats("sum", output_name="cumulative", cumulative=True)
    @define_episode_stats("sum")
    def episode_count(self, value: int) -> None:
        """1 for each episode that ended."""
