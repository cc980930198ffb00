import json

import pytest

from actor.statistics.aggregator import EpochStatsAggregator
from actor.statistics.events import EpisodeEvents, LogStatsLevel, define_epoch_stats, epoch_stats_of, events_of
from services.errors import StatisticsError
from services.rollouts import EpisodeStatistics

EPOCH = LogStatsLevel.EPOCH


def episode(episode_return, n_steps):
    return EpisodeStatistics(env_index=0, episode_return=episode_return, n_steps=n_steps)


@pytest.fixture
def aggregator():
    aggregator = EpochStatsAggregator()
    for episode_return, n_steps in ((1.0, 10), (2.0, 20), (6.0, 60)):
        aggregator.add(episode(episode_return, n_steps))
    return aggregator


@pytest.mark.parametrize(
    ("event", "name", "value"),
    [
        (EpisodeEvents.episode_return, "mean", 3.0),
        (EpisodeEvents.episode_return, "std", (14 / 3) ** 0.5),
        (EpisodeEvents.episode_return, "min", 1.0),
        (EpisodeEvents.episode_return, "max", 6.0),
        (EpisodeEvents.episode_length, "mean", 30.0),
        (EpisodeEvents.episode_length, "median", 20.0),
        (EpisodeEvents.episode_length, "min", 10),
        (EpisodeEvents.episode_length, "max", 60),
        (EpisodeEvents.episode_length, "cumulative", 90),
        (EpisodeEvents.episode_count, "epoch", 3),
        (EpisodeEvents.episode_count, "cumulative", 3),
    ],
)
def test_golden_values(aggregator, event, name, value):
    assert aggregator.get_stats_value(event, EPOCH, name) == pytest.approx(value)
    assert aggregator.epoch_stats()[f"{event.__name__}/{name}"] == pytest.approx(value)


def test_another_epoch_keeps_only_what_is_cumulative(aggregator):
    aggregator.reset_epoch()
    assert aggregator.epoch_stats() == {"episode_length/cumulative": 90, "episode_count/cumulative": 3}
    aggregator.add(episode(5.0, 50))
    assert aggregator.get_stats_value(EpisodeEvents.episode_return, EPOCH, "mean") == 5.0
    assert aggregator.get_stats_value(EpisodeEvents.episode_count, EPOCH, "epoch") == 1
    assert aggregator.get_stats_value(EpisodeEvents.episode_count, EPOCH, "cumulative") == 4
    aggregator.reset_epoch()
    assert aggregator.get_stats_value(EpisodeEvents.episode_length, EPOCH, "cumulative") == 140


def test_values_are_plain_numbers(aggregator):
    assert json.loads(json.dumps(aggregator.epoch_stats())) == aggregator.epoch_stats()


@pytest.mark.parametrize("level", [LogStatsLevel.STEP, LogStatsLevel.EPISODE])
def test_other_levels(aggregator, level):
    with pytest.raises(StatisticsError, match=rf"level is {level}; expected .*EPOCH.*episode_return: 'mean', 'std'"):
        aggregator.get_stats_value(EpisodeEvents.episode_return, level, "mean")


@pytest.mark.parametrize("name", ["median", None])
def test_unknown_name(aggregator, name):
    with pytest.raises(
        StatisticsError, match=f"no statistic named {name!r}; expected one of 'mean', 'std', 'min', 'max'"
    ):
        aggregator.get_stats_value(EpisodeEvents.episode_return, EPOCH, name)


def test_unknown_event(aggregator):
    with pytest.raises(StatisticsError, match=r"event 'sorted' is unknown.*episode_length: 'mean', 'median'"):
        aggregator.get_stats_value(sorted, EPOCH, "mean")


def test_epoch_without_a_finished_episode():
    aggregator = EpochStatsAggregator()
    with pytest.raises(
        StatisticsError, match=r"no episode has ended.*Cumulative ones exist: episode_length: 'cumulative'"
    ):
        aggregator.get_stats_value(EpisodeEvents.episode_return, EPOCH, "mean")
    assert aggregator.get_stats_value(EpisodeEvents.episode_count, EPOCH, "cumulative") == 0


def test_events_are_declared_by_decorators():
    class Events:
        @define_epoch_stats(max)
        def height(self, value):
            """One statistic, without a name."""

        def no_event(self):
            """No event."""

    assert list(events_of(Events)) == ["height"]
    (stat,) = epoch_stats_of(Events.height)
    assert (stat.reduce, stat.output_name, stat.cumulative) == (max, None, False)
    assert [stat.output_name for stat in epoch_stats_of(EpisodeEvents.episode_return)] == ["mean", "std", "min", "max"]
