import gc
import json
import sys
import types

import pytest

from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
from rollcast.actor.statistics.events import EpisodeEvents, LogStatsLevel, define_episode_stats, define_epoch_stats
from rollcast.services.errors import StatisticsError
from rollcast.services.rollouts.rollouts import EpisodeStatistics
from rollcast.services.rollouts.statistics import EpochStatistic, EventStatistic, EventValue

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
def test_epoch_statistics_have_golden_values(aggregator, event, name, value):
    assert aggregator.get_stats_value(event, EPOCH, name) == pytest.approx(value)
    assert aggregator.epoch_stats()[f"{event.__name__}/{name}"] == pytest.approx(value)


def test_new_epoch_keeps_only_cumulative_statistics(aggregator):
    aggregator.reset_epoch()
    assert aggregator.epoch_stats() == {"episode_length/cumulative": 90, "episode_count/cumulative": 3}
    aggregator.add(episode(5.0, 50))
    assert aggregator.get_stats_value(EpisodeEvents.episode_return, EPOCH, "mean") == 5.0
    assert aggregator.get_stats_value(EpisodeEvents.episode_count, EPOCH, "epoch") == 1
    assert aggregator.get_stats_value(EpisodeEvents.episode_count, EPOCH, "cumulative") == 4
    aggregator.reset_epoch()
    assert aggregator.get_stats_value(EpisodeEvents.episode_length, EPOCH, "cumulative") == 140


@pytest.mark.parametrize("level", [LogStatsLevel.STEP, LogStatsLevel.EPISODE])
def test_rejects_levels_below_the_epoch(aggregator, level):
    with pytest.raises(StatisticsError, match=rf"level is {level}; expected .*EPOCH.*episode_return: 'mean', 'std'"):
        aggregator.get_stats_value(EpisodeEvents.episode_return, level, "mean")


@pytest.mark.parametrize("name", ["median", None])
def test_error_of_unknown_name_lists_the_names(aggregator, name):
    with pytest.raises(
        StatisticsError, match=f"no statistic named {name!r}; expected one of 'mean', 'std', 'min', 'max'"
    ):
        aggregator.get_stats_value(EpisodeEvents.episode_return, EPOCH, name)


def test_error_of_unknown_event_lists_the_events(aggregator):
    with pytest.raises(StatisticsError, match=r"event 'sorted' is unknown.*episode_length: 'mean', 'median'"):
        aggregator.get_stats_value(sorted, EPOCH, "mean")


def test_epoch_without_a_finished_episode():
    aggregator = EpochStatsAggregator()
    with pytest.raises(
        StatisticsError, match=r"no episode has ended.*Cumulative statistics exist: episode_length: 'cumulative'"
    ):
        aggregator.get_stats_value(EpisodeEvents.episode_return, EPOCH, "mean")
    assert aggregator.get_stats_value(EpisodeEvents.episode_count, EPOCH, "cumulative") == 0


def parcels(*epoch, event="parcel", name="minutes"):
    return EventStatistic(event=event, name=name, epoch=epoch)


MEAN = EpochStatistic(name="mean", reduction="mean")
TOTAL = EpochStatistic(name="total", reduction="sum", cumulative=True)
OWN = EpochStatistic(name="span", reduction="own")


def add(aggregator, statistic, *values, group=()):
    aggregator.add_values([EventValue(statistic, group, value) for value in values])


@pytest.mark.parametrize("event", ["parcel", define_epoch_stats("mean")(lambda self: None)])
def test_finds_event_by_method_or_name(event):
    aggregator = EpochStatsAggregator()
    if not isinstance(event, str):
        event.__name__ = "parcel"
    add(aggregator, parcels(MEAN), 1.0, 2.0, 6.0)
    assert aggregator.get_stats_value(event, EPOCH, "mean") == 3.0
    assert aggregator.get_stats_value(event, EPOCH) == 3.0, "the only one needs no name"


def test_each_group_has_its_value():
    aggregator = EpochStatsAggregator()
    statistic = parcels(MEAN, TOTAL)
    add(aggregator, statistic, 1.0, 3.0, group=("north", "1"))
    add(aggregator, statistic, 5.0, group=("south", "1"))
    assert aggregator.get_stats_value("parcel", EPOCH, "mean") == {"north, 1": 2.0, "south, 1": 5.0}
    assert aggregator.epoch_stats(without=[EpisodeEvents]) == {
        "parcel/mean[north, 1]": 2.0,
        "parcel/total[north, 1]": 4.0,
        "parcel/mean[south, 1]": 5.0,
        "parcel/total[south, 1]": 5.0,
    }
    aggregator.reset_epoch()
    add(aggregator, statistic, 2.0, group=("south", "1"))
    assert aggregator.get_stats_value("parcel", EPOCH, "mean") == {"south, 1": 2.0}
    assert aggregator.get_stats_value("parcel", EPOCH, "total") == {"north, 1": 4.0, "south, 1": 7.0}


def test_registered_class_brings_its_own_function(caplog):
    class Events:
        @define_epoch_stats(lambda values: max(values) - min(values), output_name="span")
        @define_episode_stats("sum", output_name="minutes")
        def parcel(self, minutes):
            """Delivered."""

    strange = EpochStatsAggregator()
    add(strange, parcels(OWN), 1.0, 6.0)
    assert strange.epoch_stats(without=[EpisodeEvents]) == {}
    assert "parcel/span has a custom reduction and is omitted" in caplog.text
    with pytest.raises(StatisticsError, match=r"'span' of the event 'parcel' .* unknown here.*register"):
        strange.get_stats_value("parcel", EPOCH, "span")
    aggregator = EpochStatsAggregator()
    aggregator.register(Events)
    add(aggregator, parcels(OWN), 1.0, 6.0)
    assert aggregator.get_stats_value(Events.parcel, EPOCH, "span") == 5.0


def test_rejects_two_declarations_of_one_statistic(caplog):
    aggregator = EpochStatsAggregator()
    add(aggregator, parcels(MEAN), 1.0)
    for _ in range(3):
        add(aggregator, parcels(MEAN, name="hours"), 100.0)
    assert aggregator.get_stats_value("parcel", EPOCH, "mean") == 1.0
    assert caplog.text.count("parcel/mean has two declarations; the first is kept") == 1


def test_rejects_own_event_with_the_name_of_a_built_in_one(caplog):
    aggregator = EpochStatsAggregator()
    add(aggregator, parcels(MEAN, event="episode_return"), 1.0)
    assert "episode_return/mean has two declarations" in caplog.text
    with pytest.raises(StatisticsError, match="no episode has ended"):
        aggregator.get_stats_value(EpisodeEvents.episode_return, EPOCH, "mean")


def test_drops_groups_beyond_the_limit(caplog):
    aggregator = EpochStatsAggregator()
    for epoch in range(3):
        for customer in range(2000):
            add(aggregator, parcels(MEAN), 1.0, group=(f"{epoch}-{customer}",))
        assert 1000 < len(aggregator.epoch_stats(without=[EpisodeEvents])) < 1025
        aggregator.reset_epoch()
    assert caplog.text.count("more than 1024 statistics and groups") == 1


@pytest.mark.slow
def test_memory_does_not_grow_with_episodes():
    """Neither where epochs end, nor where nobody ends them."""

    def play(aggregator, n_episodes, n_epochs):
        for _ in range(n_epochs):
            for number in range(n_episodes // n_epochs):
                aggregator.add(
                    EpisodeStatistics(
                        env_index=0,
                        episode_return=float(number),
                        n_steps=number,
                        events=(EventValue(parcels(MEAN, TOTAL), ("north",), float(number)),),
                    )
                )
            if n_epochs > 1:
                aggregator.reset_epoch()
        aggregator.epoch_stats()
        return held_by(aggregator)

    for n_epochs in (1, 100):
        aggregator = EpochStatsAggregator()
        before = play(aggregator, 12_000, n_epochs)
        # larger numbers, not more of them
        assert play(aggregator, 24_000, n_epochs) < 1.02 * before
        assert before < 500_000


def held_by(aggregator):
    """Bytes of everything that hangs on it."""
    seen, waiting, n_bytes = set(), [aggregator], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType):
            continue
        seen.add(id(one))
        n_bytes += sys.getsizeof(one)
        waiting += gc.get_referents(one)
    return n_bytes


def test_training_loop_can_fire_events():
    class Events:
        @define_epoch_stats("mean", input_name="seconds", output_name="mean")
        @define_epoch_stats("sum", input_name="n", output_name="updates", cumulative=True)
        @define_episode_stats("sum", input_name="seconds", output_name="seconds")
        @define_episode_stats("count", output_name="n")
        def update(self, seconds):
            """Done."""

    aggregator = EpochStatsAggregator()
    events = aggregator.events(Events)
    for seconds in (1.0, 3.0):
        events.update(seconds)
        aggregator.end_episode()
    assert aggregator.get_stats_value(Events.update, EPOCH, "mean") == 2.0
    assert aggregator.get_stats_value(Events.update, EPOCH, "updates") == 2


def test_cumulative_statistics_continue_from_a_checkpoint():
    reductions = ("mean", "std", "min", "max", "sum", "count", "median")
    statistic = EventStatistic(
        event="fired",
        name="",
        epoch=(
            *(EpochStatistic(name=f"all_{name}", reduction=name, cumulative=True) for name in reductions),
            EpochStatistic(name="of_epoch", reduction="sum"),
        ),
    )
    values = [EventValue(statistic, group, value) for value in (4.0, 1.5, 7.0) for group in (("a",), ("b",))]
    whole, begun, resumed = (EpochStatsAggregator() for _ in range(3))
    whole.add_values(values)
    whole.add(EpisodeStatistics(0, 3.0, 5))
    begun.add_values(values[:3])
    begun.add(EpisodeStatistics(0, 3.0, 5))
    resumed.load_state(json.loads(json.dumps(begun.state())))
    assert "fired/of_epoch[a]" not in resumed.epoch_stats(), "an epoch begins"
    resumed.add_values(values[3:])
    expected, found = whole.epoch_stats(), resumed.epoch_stats()
    for name in reductions:
        for group in "ab":
            key = f"fired/all_{name}[{group}]"
            assert found[key] == pytest.approx(expected[key]), key
    assert found["episode_count/cumulative"] == 1
    assert found["fired/of_epoch[b]"] == 8.5
