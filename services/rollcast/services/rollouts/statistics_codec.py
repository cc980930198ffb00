"""Encodes and decodes the events of episodes.

A rollout declares each statistic once. A value refers to its statistic by the position of the declaration.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from rollcast.services.limits.limits import MAX_EVENT_STATISTICS, MAX_GROUPING, MAX_NAME_LENGTH, MAX_VALUES_PER_EPISODE
from rollcast.services.limits.texts import quoted
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.rollouts.statistics import EpochStatistic, EventStatistic, EventValue, Reduction, name_problem
from rollcast.v1 import rollout_pb2

_REDUCTIONS: Final[dict[int, Reduction]] = {
    rollout_pb2.STATISTIC_REDUCTION_UNSPECIFIED: "own",
    rollout_pb2.STATISTIC_REDUCTION_MEAN: "mean",
    rollout_pb2.STATISTIC_REDUCTION_STD: "std",
    rollout_pb2.STATISTIC_REDUCTION_MIN: "min",
    rollout_pb2.STATISTIC_REDUCTION_MAX: "max",
    rollout_pb2.STATISTIC_REDUCTION_SUM: "sum",
    rollout_pb2.STATISTIC_REDUCTION_COUNT: "count",
    rollout_pb2.STATISTIC_REDUCTION_MEDIAN: "median",
}
_NUMBERS: Final = {reduction: number for number, reduction in _REDUCTIONS.items()}


def fill_statistics(header: rollout_pb2.Rollout, rollout: Rollout) -> None:
    """Writes a rollout's episodes and events to the header, and replaces earlier episodes and events.

    Args:
        header: The header.
        rollout: The rollout.
    """
    del header.episodes[:], header.event_statistics[:], header.events[:]
    places: dict[EventStatistic, int] = {}
    for episode in rollout.episodes:
        message = header.episodes.add(
            env_index=episode.env_index, episode_return=episode.episode_return, n_steps=episode.n_steps
        )
        for value in episode.events:
            message.events.add(
                statistic=places.setdefault(value.statistic, len(places)), group=value.group, value=value.value
            )
    for value in rollout.events:
        header.events.add(
            statistic=places.setdefault(value.statistic, len(places)), group=value.group, value=value.value
        )
    for statistic in places:
        declared = header.event_statistics.add(event=statistic.event, name=statistic.name)
        for epoch in statistic.epoch:
            declared.epoch.add(name=epoch.name, reduction=_NUMBERS[epoch.reduction], cumulative=epoch.cumulative)


def event_statistics_from_proto(header: rollout_pb2.Rollout) -> Sequence[EventStatistic]:
    """Decodes the declarations of a header that passed `statistics_problem`.

    Args:
        header: The header.

    Returns:
        The declarations, in order.
    """
    return [
        EventStatistic(
            event=declared.event,
            name=declared.name,
            epoch=tuple(
                EpochStatistic(
                    name=epoch.name, reduction=_REDUCTIONS.get(epoch.reduction, "own"), cumulative=epoch.cumulative
                )
                for epoch in declared.epoch
            ),
        )
        for declared in header.event_statistics
    ]


def event_values_from_proto(
    events: Iterable[rollout_pb2.EventValue], statistics: Sequence[EventStatistic]
) -> tuple[EventValue, ...]:
    """Decodes the values of events.

    Args:
        events: The values of an episode, or of a rollout.
        statistics: The declared statistics.
    """
    return tuple(EventValue(statistics[event.statistic], tuple(event.group), event.value) for event in events)


def statistics_problem(header: rollout_pb2.Rollout) -> tuple[str, str, str] | None:
    """Checks the events of a rollout.

    Args:
        header: The rollout.

    Returns:
        The problem, the expectation, and the exceeded limit or an empty string; None if the events are valid.
    """
    n_statistics = len(header.event_statistics)
    if n_statistics > MAX_EVENT_STATISTICS:
        return f"{n_statistics} event_statistics", f"at most {MAX_EVENT_STATISTICS}", "max_event_statistics"
    for statistic in header.event_statistics:
        if not 0 < len(statistic.epoch) <= MAX_EVENT_STATISTICS:
            return (
                f"the event {quoted(statistic.event)} with {len(statistic.epoch)} statistics of epochs",
                f"1 to {MAX_EVENT_STATISTICS}",
                "max_event_statistics" if statistic.epoch else "",
            )
        problem = _names_problem(
            (statistic.event, statistic.name, *(epoch.name for epoch in statistic.epoch)), "statistics"
        )
        if problem or not statistic.event:
            return problem or ("an event without a name", "one", "")
    problem = _values_problem(header.events, n_statistics)
    for episode in header.episodes:
        if episode.events:
            problem = problem or _values_problem(episode.events, n_statistics)
    return problem


def _values_problem(events: Sequence[rollout_pb2.EventValue], n_statistics: int) -> tuple[str, str, str] | None:
    if len(events) > MAX_VALUES_PER_EPISODE:
        return (
            f"{len(events)} values of events in one episode",
            f"at most {MAX_VALUES_PER_EPISODE}",
            "max_values_per_episode",
        )
    for event in events:
        if event.statistic >= n_statistics:
            return (
                f"a value of the event statistic {event.statistic}",
                f"one below {n_statistics}, which it declares",
                "",
            )
        if not math.isfinite(event.value):
            return f"an event whose value is {event.value}", "a finite value", ""
        if len(event.group) > MAX_GROUPING:
            return f"an event grouped by {len(event.group)} attributes", f"at most {MAX_GROUPING}", "max_grouping"
        if event.group and (problem := _names_problem(event.group, "groups")):
            return problem
    return None


def _names_problem(names: Iterable[str], of_what: str) -> tuple[str, str, str] | None:
    for name in names:
        if problem := name_problem(name):
            limit = "max_name_length" if len(name) > MAX_NAME_LENGTH else ""
            return f"events with {of_what} named {problem}", f"at most {MAX_NAME_LENGTH} printable characters", limit
    return None
