import math
import statistics
import tracemalloc

import pytest

from rollcast.actor.statistics.episode_aggregator import EpisodeStatsAggregator
from rollcast.actor.statistics.events import (
    define_episode_stats,
    define_epoch_stats,
    define_stats_grouping,
    define_step_stats,
)
from rollcast.services.errors import StatisticsError


class Deliveries:
    @define_epoch_stats("mean", input_name="busiest", output_name="busiest")
    @define_epoch_stats("mean", input_name="minutes", output_name="minutes")
    @define_epoch_stats("mean", input_name="all", output_name="all")
    @define_episode_stats("max", input_name="in_step", output_name="busiest")
    @define_episode_stats("mean", input_name="minutes", output_name="minutes")
    @define_episode_stats("count", input_name="minutes", output_name="all", group_by=())
    @define_step_stats("sum", input_name="minutes", output_name="in_step")
    @define_stats_grouping("zone")
    def parcel(self, zone, minutes):
        """Delivered."""


class Alarms:
    @define_epoch_stats("mean")
    @define_episode_stats("count")
    def alarm(self, *, loud=False):
        """Rings."""


def values_of(aggregator):
    return {(statistic.event, statistic.name, *group): value for statistic, group, value in aggregator.end_episode()}


def test_reduces_steps_to_episode_values():
    aggregator = EpisodeStatsAggregator()
    parcel = aggregator.functions_of(Deliveries)["parcel"]
    for step in ([("north", 1.0), ("north", 2.0), ("south", 10)], [], [("north", 2.5)]):
        for zone, minutes in step:
            parcel(zone, minutes=minutes)
        aggregator.end_step()
    assert values_of(aggregator) == {
        ("parcel", "busiest", "north"): 3.0,
        ("parcel", "busiest", "south"): 10.0,
        ("parcel", "minutes", "north"): pytest.approx(5.5 / 3),
        ("parcel", "minutes", "south"): 10.0,
        ("parcel", "all"): 4.0,
    }


def test_episode_without_events_has_zero_counts_and_sums():
    aggregator = EpisodeStatsAggregator()
    aggregator.functions_of(Deliveries)
    aggregator.functions_of(Alarms)["alarm"]()
    assert values_of(aggregator) == {("parcel", "all"): 0.0, ("alarm", ""): 1.0}
    assert values_of(aggregator) == {("parcel", "all"): 0.0, ("alarm", ""): 0.0}, "the one before is forgotten"


def test_rejects_calls_that_do_not_match_the_signature():
    alarm = EpisodeStatsAggregator().functions_of(Alarms)["alarm"]
    alarm(loud=True)
    with pytest.raises(TypeError, match=r"Alarms\.alarm\(\) takes 0 positional arguments but 1 was given"):
        alarm(True)
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'quiet'"):
        alarm(quiet=True)


@pytest.mark.parametrize("n_steps", [100, 20_000])
def test_long_episodes_are_reduced_in_pieces(n_steps):
    aggregator = EpisodeStatsAggregator()
    parcel = aggregator.functions_of(Deliveries)["parcel"]
    tracemalloc.start()
    for step in range(n_steps):
        parcel("north", step)
        parcel("north", 1)
        aggregator.end_step()
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 2e6, "of 40,000 firings not all are kept"
    assert values_of(aggregator) == {
        ("parcel", "busiest", "north"): n_steps,
        ("parcel", "minutes", "north"): pytest.approx((statistics.mean(range(n_steps)) + 1) / 2),
        ("parcel", "all"): 2 * n_steps,
    }


@pytest.mark.parametrize(
    ("minutes", "message"),
    [
        *(
            (value, r"Deliveries\.parcel was fired with values that cannot be reduced.*numbers")
            for value in ("x", None, [1.0])
        ),
        *(
            (value, rf"has the value {value} in an episode, for 'busiest'; expected a finite")
            for value in (math.nan, math.inf)
        ),
    ],
)
def test_rejects_values_that_are_not_finite_numbers(minutes, message):
    aggregator = EpisodeStatsAggregator()
    aggregator.functions_of(Deliveries)["parcel"]("north", minutes)
    with pytest.raises(StatisticsError, match=message):
        aggregator.end_episode()


def test_rejects_groups_that_cannot_be_sent():
    aggregator = EpisodeStatsAggregator()
    parcel = aggregator.functions_of(Deliveries)["parcel"]
    for zone, match in (("z" * 129, "129 characters"), ("a\nb", r"'a\\nb'"), ({}, "unhashable")):
        parcel(zone, 1.0)
        with pytest.raises(StatisticsError, match=match):
            aggregator.end_episode()
    for zone in range(1025):
        parcel(zone, 1.0)
    with pytest.raises(StatisticsError, match=r"more than 1024 groups in one episode.*fewer values"):
        aggregator.end_episode()


def test_rejects_two_events_of_one_name():
    class Parcels:
        @define_epoch_stats("mean")
        @define_episode_stats("count")
        def parcel(self):
            """Has been taken already."""

    class Returns:
        @define_epoch_stats("mean")
        @define_episode_stats("count")
        def episode_return(self):
            """Every episode has one."""

    aggregator = EpisodeStatsAggregator()
    aggregator.functions_of(Deliveries)
    with pytest.raises(StatisticsError, match=r"Parcels\.parcel has the name of Deliveries\.parcel; .*rename"):
        aggregator.functions_of(Parcels)
    with pytest.raises(StatisticsError, match=r"has the name of EpisodeEvents\.episode_return"):
        aggregator.functions_of(Returns)
    assert aggregator.functions_of(Deliveries) == aggregator.functions_of(Deliveries), "wrappers fire what it fires"
