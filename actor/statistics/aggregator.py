"""What an epoch makes of the episodes that ended in it."""

from collections.abc import Callable
from typing import Any

from actor.statistics.events import EpisodeEvents, EpochStat, LogStatsLevel, Statistic, events_of
from services.errors import StatisticsError
from services.rollouts import EpisodeStatistics


class EpochStatsAggregator(EpisodeEvents):
    """Keeps the values of one epoch's events, and totals over all epochs.

    Cost grows with the episodes of one epoch only. Not thread-safe: the thread that adds also reads.
    """

    def __init__(self) -> None:
        self._stats = events_of(EpisodeEvents)
        self._values: dict[str, list[Statistic]] = {name: [] for name in self._stats}
        self._totals: dict[tuple[str, str | None], Statistic] = {}

    def episode_return(self, value: float) -> None:
        """Fires the event."""
        self._values["episode_return"].append(value)

    def episode_length(self, value: int) -> None:
        """Fires the event."""
        self._values["episode_length"].append(value)

    def episode_count(self, value: int) -> None:
        """Fires the event."""
        self._values["episode_count"].append(value)

    def add(self, episode: EpisodeStatistics) -> None:
        """Fires the events of a finished episode.

        Args:
            episode: The episode.
        """
        self.episode_return(episode.episode_return)
        self.episode_length(episode.n_steps)
        self.episode_count(1)

    def reset_epoch(self) -> None:
        """Starts another epoch: values are dropped, cumulative statistics carry on."""
        for event_name, stats in self._stats.items():
            for stat in stats:
                if stat.cumulative:
                    self._totals[event_name, stat.output_name] = self._reduce(event_name, stat)
        for values in self._values.values():
            values.clear()

    def get_stats_value(self, event: Callable[..., Any], level: LogStatsLevel, name: str | None = None) -> Statistic:
        """One statistic of the current epoch.

        Args:
            event: The event, for example `EpisodeEvents.episode_return`.
            level: `LogStatsLevel.EPOCH`: steps and episodes are not kept.
            name: The statistic's `output_name`; may be left out where the event has only one.

        Returns:
            Its value.

        Raises:
            StatisticsError: If the level is another, the event or the name is unknown, or no episode has ended in this
                epoch.
        """
        if level is not LogStatsLevel.EPOCH:
            raise StatisticsError(
                f"level is {level}; expected {LogStatsLevel.EPOCH}: statistics of steps and episodes are not kept; "
                f"ask for the epoch's. There are: {self._listing()}"
            )
        event_name = getattr(event, "__name__", repr(event))
        stats = self._stats.get(event_name)
        if stats is None:
            raise StatisticsError(
                f"the event {event_name!r} is unknown; expected a method of EpisodeEvents. There are: {self._listing()}"
            )
        found = stats if name is None and len(stats) == 1 else [stat for stat in stats if stat.output_name == name]
        if not found:
            raise StatisticsError(
                f"the event {event_name!r} has no statistic named {name!r}; expected one of "
                f"{', '.join(repr(stat.output_name) for stat in stats)}; correct the name. "
                f"There are: {self._listing()}"
            )
        if not self._values[event_name] and not found[0].cumulative:
            raise StatisticsError(
                f"no episode has ended in this epoch, so {event_name!r} has no {name!r}; expected at least one; "
                f"collect more rollouts first. Cumulative ones exist: {self._listing(only_cumulative=True)}"
            )
        return self._reduce(event_name, found[0])

    def epoch_stats(self) -> dict[str, Statistic]:
        """All statistics that exist now, for those who write them down.

        Returns:
            Values by `"event/output_name"`; without a finished episode only the cumulative ones.
        """
        return {
            f"{event_name}/{stat.output_name}" if stat.output_name else event_name: self._reduce(event_name, stat)
            for event_name, stats in self._stats.items()
            for stat in stats
            if self._values[event_name] or stat.cumulative
        }

    def _reduce(self, event_name: str, stat: EpochStat) -> Statistic:
        values = self._values[event_name]
        if stat.cumulative:
            values = [self._totals.get((event_name, stat.output_name), 0), *values]
        reduced = stat.reduce(values)
        # numpy's scalars are no JSON.
        statistic: Statistic = reduced.item() if hasattr(reduced, "item") else reduced
        return statistic

    def _listing(self, *, only_cumulative: bool = False) -> str:
        return "; ".join(
            f"{event_name}: {', '.join(names)}"
            for event_name, stats in self._stats.items()
            if (names := [repr(stat.output_name) for stat in stats if stat.cumulative or not only_cumulative])
        )
