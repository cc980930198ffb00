"""Reduces the statistics of episodes over an epoch, and over all epochs."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from rollcast.actor.statistics.declarations import EpochKey, events_of
from rollcast.actor.statistics.episode_aggregator import EpisodeStatsAggregator
from rollcast.actor.statistics.events import EpisodeEvents, LogStatsLevel, event_name
from rollcast.actor.statistics.firing import EventFirer
from rollcast.actor.statistics.reductions import Accumulator, ReduceFunction, Statistic, make_accumulator
from rollcast.services.errors import StatisticsError
from rollcast.services.rollouts.rollouts import EpisodeStatistics
from rollcast.services.rollouts.statistics import EpochStatistic, EventStatistic, EventValue

logger = logging.getLogger(__name__)

_Events = TypeVar("_Events")
Group: TypeAlias = tuple[str, ...]

# The largest number of statistics and groups, to bound memory.
_MAX_SERIES = 1024
# The number of stored values at which they are reduced: reducing a single value costs more than storing it.
_MAX_PENDING = 1024

_RETURN, _LENGTH, _COUNT = (event.chains[0].statistic for event in events_of(EpisodeEvents).values())
_OF_EVERY_EPISODE = (_RETURN, _LENGTH, _COUNT)


class EpochStatsAggregator:
    """The statistics of one epoch's episodes, and cumulative statistics over all epochs.

    Memory does not grow with the number of episodes. The aggregator keeps sums, and for medians the last 10,000 values.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._own: dict[EpochKey, ReduceFunction] = {}
        self._declared: dict[EpochKey, tuple[EventStatistic, EpochStatistic]] = {}
        self._series: dict[EventStatistic, dict[Group, _EpochSeries]] = {}
        self._n_series = 0
        self._warned: set[EpochKey | None] = set()
        self._fired = EpisodeStatsAggregator()
        for statistic in _OF_EVERY_EPISODE:
            self._series_of(statistic, ())
        self._append_return, self._append_length, self._append_count = (
            self._series[statistic][()].append for statistic in _OF_EVERY_EPISODE
        )

    def add(self, episode: EpisodeStatistics) -> None:
        """Adds a finished episode, with the statistics of its environment's events."""
        self._append_return(episode.episode_return)
        self._append_length(episode.n_steps)
        self._append_count(1)
        if episode.events:
            self.add_values(episode.events)

    def add_all(self, episodes: Iterable[EpisodeStatistics], events: Iterable[EventValue] = ()) -> None:
        """Adds the episodes and events of a rollout.

        Args:
            episodes: The episodes that ended in the rollout.
            events: The statistics of the policy's events.
        """
        for episode in episodes:
            self.add(episode)
        self.add_values(events)

    def add_values(self, values: Iterable[EventValue]) -> None:
        """Adds the statistics of an episode's events.

        Args:
            values: The statistics. If a declaration contradicts an earlier one, its values are dropped with a warning.
        """
        for value in values:
            groups = self._series.get(value.statistic)
            series = groups.get(value.group) if groups is not None else None
            if series is None:
                series = self._series_of(value.statistic, value.group)
            if series is not None:
                series.append(value.value)

    def register(self, *interfaces: type) -> None:
        """Registers custom reductions of epochs, because actors do not send them. Call this before the first value.

        Args:
            interfaces: Classes whose methods are events.

        Raises:
            StatisticsError: If a declaration is wrong.
        """
        for interface in interfaces:
            for event in events_of(interface).values():
                self._own.update(event.own_epoch)

    def events(self, interface: type[_Events]) -> _Events:
        """Returns an object whose methods fire an interface's events, for a training loop. See also `end_episode`.

        Args:
            interface: A class whose methods are events.

        Raises:
            StatisticsError: If a declaration is wrong, or the name of an event is taken.
        """
        self.register(interface)
        firer = EventFirer(interface)
        firer.lead_to(self._fired)
        return cast(_Events, firer)

    def end_episode(self) -> None:
        """Reduces the events fired through `events` as one episode, and adds the result.

        Raises:
            StatisticsError: If a value cannot be reduced.
        """
        self.add_values(self._fired.end_episode())

    def reset_epoch(self) -> None:
        """Starts another epoch. Cumulative statistics continue. All other statistics restart."""
        for statistic, groups in list(self._series.items()):
            if statistic in _OF_EVERY_EPISODE or any(epoch.cumulative for epoch in statistic.epoch):
                for series in groups.values():
                    series.reset_epoch()
            else:
                # The next epoch may have other groups.
                self._n_series -= len(groups)
                del self._series[statistic]

    def state(self) -> list[dict[str, Any]]:
        """Returns the cumulative statistics as JSON values, for a checkpoint. All others restart after a resume."""
        return [
            {
                "statistic": dataclasses.asdict(statistic),
                "group": list(group),
                "accumulators": [
                    accumulator.state() if epoch.cumulative else None
                    for epoch, accumulator in zip(statistic.epoch, series.accumulators(), strict=True)
                ],
            }
            for statistic, groups in self._series.items()
            if any(epoch.cumulative for epoch in statistic.epoch)
            for group, series in groups.items()
        ]

    def load_state(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Restores the result of `state`. Call this before the first value arrives."""
        for saved in state:
            declared = saved["statistic"]
            epochs = tuple(EpochStatistic(**epoch) for epoch in declared["epoch"])
            statistic = EventStatistic(event=declared["event"], name=declared["name"], epoch=epochs)
            group = tuple(saved["group"])
            series = self._series.get(statistic, {}).get(group) or self._series_of(statistic, group)
            if series is None:
                continue
            for accumulator, values in zip(series.accumulators(), saved["accumulators"], strict=True):
                if values is not None:
                    accumulator.load_state(values)

    def get_stats_value(
        self, event: Callable[..., Any] | str, level: LogStatsLevel, name: str | None = None
    ) -> Statistic | dict[str, Statistic]:
        """Returns one statistic of the current epoch.

        Args:
            event: The event, for example `EpisodeEvents.episode_return`, or its name.
            level: `LogStatsLevel.EPOCH`; steps and episodes are not kept.
            name: The statistic's `output_name`; optional if the event has only one statistic.

        Returns:
            The value. For a grouped statistic, a dict from group to value. A group is the attributes' values as text,
            joined with `", "`.

        Raises:
            StatisticsError: If the level is not `EPOCH`, the event or the name is unknown, or no episode has ended in
                this epoch.
        """
        if level is not LogStatsLevel.EPOCH:
            raise StatisticsError(
                f"level is {level}; expected {LogStatsLevel.EPOCH}: statistics of steps and episodes are not kept; "
                f"request a statistic of the epoch. There are: {self._listing()}"
            )
        wanted = event_name(event)
        names = [known for known_event, known in self._declared if known_event == wanted]
        if not names:
            raise StatisticsError(
                f"the event {wanted!r} is unknown; expected an event of EpisodeEvents, or an event that was fired. "
                f"There are: {self._listing()}"
            )
        found = names[0] if name is None and len(names) == 1 else name or ""
        if found not in names:
            raise StatisticsError(
                f"the event {wanted!r} has no statistic named {name!r}; expected one of "
                f"{', '.join(repr(one or None) for one in names)}; correct the name. There are: {self._listing()}"
            )
        statistic, epoch = self._declared[wanted, found]
        if epoch.reduction == "own" and (wanted, found) not in self._own:
            raise StatisticsError(
                f"{name!r} of the event {wanted!r} is reduced by a function that is unknown here; expected its "
                "interface class; call register() with this class before the first value arrives"
            )
        place = statistic.epoch.index(epoch)
        values = {
            group: value
            for group, series in self._series.get(statistic, {}).items()
            if (value := series.epoch_values()[place]) is not None
        }
        if not values:
            raise StatisticsError(
                f"no episode has ended in this epoch, so {wanted!r} has no {name!r}; expected at least one; "
                f"collect more rollouts first. Cumulative statistics exist: {self._listing(only_cumulative=True)}"
            )
        return values[()] if () in values else {", ".join(group): value for group, value in values.items()}

    def epoch_stats(self, *, without: Iterable[type] = ()) -> dict[str, Statistic]:
        """Returns all statistics that exist now, for writers.

        Args:
            without: Interface classes whose events are omitted.

        Returns:
            Values by `"event/output_name[group]"`. Before the first episode of an epoch has ended: only cumulative
            statistics.
        """
        left_out = {name for interface in without for name in events_of(interface)}
        return {
            _full_name(statistic.event, epoch.name, group): value
            for statistic, groups in self._series.items()
            if statistic.event not in left_out
            for group, series in groups.items()
            for epoch, value in zip(statistic.epoch, series.epoch_values(), strict=True)
            if value is not None
        }

    def _series_of(self, statistic: EventStatistic, group: Group) -> "_EpochSeries | None":
        """Makes the series of a statistic and group. If that is impossible, warns and returns None."""
        for epoch in statistic.epoch:
            key = (statistic.event, epoch.name)
            declared, _ = self._declared.get(key, (statistic, epoch))
            if declared != statistic:
                self._warn(
                    key,
                    f"statistic {_full_name(*key, ())} has two declarations; the first is kept, and the values of the "
                    "second are dropped: rename one of the events, or install the same version everywhere",
                )
                return None
            if epoch.reduction == "own" and key not in self._own:
                self._warn(
                    key,
                    f"statistic {_full_name(*key, ())} has a custom reduction and is omitted; register it with "
                    "get_epoch_stats_aggregator().register(its interface class)",
                )
        if self._n_series >= _MAX_SERIES or len(self._declared) >= _MAX_SERIES:
            self._warn(
                None,
                f"events have more than {_MAX_SERIES} statistics and groups in an epoch; further statistics, such as "
                f"{_full_name(statistic.event, statistic.name, group)}, are dropped: group by attributes with fewer "
                "values",
            )
            return None
        for epoch in statistic.epoch:
            self._declared.setdefault((statistic.event, epoch.name), (statistic, epoch))
        self._n_series += 1
        series = _EpochSeries(statistic, self._own)
        self._series.setdefault(statistic, {})[group] = series
        return series

    def _warn(self, about: EpochKey | None, message: str) -> None:
        """Logs a warning once for each statistic; `about` is None for the limit on statistics."""
        if about not in self._warned and len(self._warned) < _MAX_SERIES:
            self._warned.add(about)
            logger.warning("%s", message)

    def _listing(self, *, only_cumulative: bool = False) -> str:
        names: dict[str, list[str]] = {}
        for (event, name), (_, epoch) in self._declared.items():
            if epoch.cumulative or not only_cumulative:
                names.setdefault(event, []).append(repr(name or None))
        return "; ".join(f"{event}: {', '.join(of_event)}" for event, of_event in names.items())


class _EpochSeries:
    """The values of one statistic and group, reduced over epochs. `append` is about as cheap as storing the value.

    Args:
        statistic: The statistic of episodes.
        own: The registered reductions of users.
    """

    __slots__ = ("_accumulators", "_has_values", "_own", "_pending", "_statistic")

    def __init__(self, statistic: EventStatistic, own: Mapping[EpochKey, ReduceFunction]) -> None:
        self._statistic = statistic
        self._own = {epoch.name: own.get((statistic.event, epoch.name)) for epoch in statistic.epoch}
        self._accumulators = [self._accumulator(epoch) for epoch in statistic.epoch]
        self._pending: list[Statistic] = []
        # True once a value has been reduced in this epoch.
        self._has_values = False

    def append(self, value: Statistic) -> None:
        """Adds a value."""
        self._pending.append(value)
        if len(self._pending) >= _MAX_PENDING:
            self.accumulators()

    def accumulators(self) -> list[Accumulator]:
        """Returns the accumulators, with all values reduced."""
        if self._pending:
            for accumulator in self._accumulators:
                accumulator.extend(self._pending)
            self._has_values = True
            self._pending.clear()
        return self._accumulators

    def epoch_values(self) -> list[Statistic | None]:
        """Returns a value for each statistic of the epoch; None for a statistic without episodes."""
        accumulators = self.accumulators()
        return [
            accumulator.value() if self._has_values or epoch.cumulative else None
            for epoch, accumulator in zip(self._statistic.epoch, accumulators, strict=True)
        ]

    def reset_epoch(self) -> None:
        """Restarts all statistics that are not cumulative."""
        self._accumulators = [
            accumulator if epoch.cumulative else self._accumulator(epoch)
            for epoch, accumulator in zip(self._statistic.epoch, self.accumulators(), strict=True)
        ]
        self._has_values = False

    def _accumulator(self, epoch: EpochStatistic) -> Accumulator:
        own = self._own[epoch.name]
        # A reduction that is not registered gives no value.
        return make_accumulator(epoch.reduction, own if own is not None else _no_value)


def _no_value(values: Sequence[Statistic]) -> None:
    del values


def _full_name(event: str, name: str, group: Group) -> str:
    return (f"{event}/{name}" if name else event) + (f"[{', '.join(group)}]" if group else "")
