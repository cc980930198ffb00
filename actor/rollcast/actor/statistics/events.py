"""Events, and the decorators that say what becomes of their values: from steps to episodes to epochs.

An event is a method of an interface class; firing it is calling it.
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
    """Over what a statistic is taken."""

    STEP = 1
    EPISODE = 2
    EPOCH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsDefinition:
    """One statistic of an event, as it was declared.

    Attributes:
        level: Over what it is taken.
        reduce: How.
        input_name: Of what; None: of the only thing there is.
        output_name: Its name among the event's statistics of this level; None for the only one.
        group_by: Of an episode's: the attributes whose values have a value each; None: those of the event.
        cumulative: Of an epoch's: over all epochs instead of one.
    """

    level: LogStatsLevel
    reduce: Reduce
    input_name: str | None
    output_name: str | None
    group_by: tuple[str, ...] | None = None
    cumulative: bool = False


@dataclass(frozen=True, slots=True)
class StatsGrouping:
    """The attributes whose values have statistics of their own, as they were declared."""

    attributes: tuple[str, ...]


def define_step_stats(
    reduce: Reduce, input_name: str | None = None, output_name: str | None = None
) -> Callable[[_Event], _Event]:
    """Declares what a step makes of the events that are fired in it.

    Args:
        reduce: `"mean"`, `"std"`, `"min"`, `"max"`, `"sum"`, `"count"`, `"median"`, the function of that name, or
            one of one's own, from a sequence of numbers to one.
        input_name: The attribute; may be left out where there is only one, and with `"count"`.
        output_name: Its name; needed where the event has several statistics of steps.

    Returns:
        The decorator.

    Raises:
        StatisticsError: `reduce` is neither a name nor a function.
    """
    return _declare(LogStatsLevel.STEP, reduce, input_name, output_name)


def define_episode_stats(
    reduce: Reduce,
    input_name: str | None = None,
    output_name: str | None = None,
    group_by: str | Sequence[str] | None = None,
) -> Callable[[_Event], _Event]:
    """Declares what an episode makes of its steps.

    Args:
        reduce: As of `define_step_stats`.
        input_name: A statistic of steps; where none has that name, an attribute of the events. May be left out where
            there is only one, and with `"count"`.
        output_name: Its name; needed where the event has several statistics of episodes.
        group_by: Attributes: each combination of their values has a value of its own. None: those of
            `define_stats_grouping`.

    Returns:
        The decorator.

    Raises:
        StatisticsError: As of `define_step_stats`.
    """
    grouping = (group_by,) if isinstance(group_by, str) else None if group_by is None else tuple(group_by)
    return _declare(LogStatsLevel.EPISODE, reduce, input_name, output_name, group_by=grouping)


def define_epoch_stats(
    reduce: Reduce, input_name: str | None = None, output_name: str | None = None, *, cumulative: bool = False
) -> Callable[[_Event], _Event]:
    """Declares what an epoch makes of its episodes; stack several for several statistics.

    Args:
        reduce: As of `define_step_stats`. A function of one's own has to be known to the learner, too: see
            `EpochStatsAggregator.register`.
        input_name: A statistic of episodes; may be left out where there is only one.
        output_name: Its name; needed where the event has several statistics of epochs.
        cumulative: Over all epochs instead of one.

    Returns:
        The decorator.

    Raises:
        StatisticsError: As of `define_step_stats`.
    """
    return _declare(LogStatsLevel.EPOCH, reduce, input_name, output_name, cumulative=cumulative)


def define_stats_grouping(*attributes: str) -> Callable[[_Event], _Event]:
    """Declares that every combination of some attributes' values has statistics of its own.

    Args:
        attributes: Their names.

    Returns:
        The decorator.
    """
    return _decorator(StatsGrouping(attributes))


def definitions_of(event: Callable[..., Any]) -> tuple[StatsDefinition | StatsGrouping, ...]:
    """What was declared for an event, in the order it is written.

    Args:
        event: A method of an interface class.

    Returns:
        Nothing for what is no event.
    """
    definitions: tuple[StatsDefinition | StatsGrouping, ...] = getattr(event, _ATTRIBUTE, ())
    return definitions


def event_name(event: Callable[..., Any] | str) -> str:
    """The name of an event that is given by its method, or by name."""
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
    """What happens when an episode ends. Nobody fires these: every episode has them."""

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
        """That it ended: 1."""
