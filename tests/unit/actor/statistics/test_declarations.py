import functools

import numpy as np
import pytest

from rollcast.actor.statistics.declarations import events_of
from rollcast.actor.statistics.events import (
    EpisodeEvents,
    define_episode_stats,
    define_epoch_stats,
    define_stats_grouping,
    define_step_stats,
)
from rollcast.services.errors import StatisticsError
from rollcast.services.rollouts.statistics import EpochStatistic, EventStatistic


def interface(*decorators, event=None):
    """A class with one event, `parcel`, decorated as if `decorators` were written above it."""

    def parcel(self, zone, minutes):
        """An event."""

    method = parcel if event is None else event
    for decorator in reversed(decorators):
        method = decorator(method)
    return type("Events", (), {"parcel": method})


def test_declarations_keep_names_and_reductions():
    events = interface(
        define_epoch_stats(np.mean, input_name="minutes", output_name="mean"),
        define_epoch_stats(sum, input_name="parcels", output_name="parcels", cumulative=True),
        define_epoch_stats("max", input_name="minutes", output_name="worst"),
        define_episode_stats(max, input_name="minutes", output_name="minutes"),
        define_episode_stats(len, output_name="parcels", group_by=()),
        define_stats_grouping("zone"),
    )
    minutes, parcels = events_of(events)["parcel"].chains
    assert minutes.statistic == EventStatistic(
        event="parcel",
        name="minutes",
        epoch=(EpochStatistic(name="mean", reduction="mean"), EpochStatistic(name="worst", reduction="max")),
    )
    assert parcels.statistic.epoch == (EpochStatistic(name="parcels", reduction="sum", cumulative=True),)
    assert (minutes.group_by, parcels.group_by) == ((0,), ())
    assert (minutes.attribute, parcels.attribute) == (1, None)


def test_single_statistics_need_no_name():
    (chain,) = events_of(
        interface(define_epoch_stats("mean"), define_episode_stats("sum"), event=lambda self, value: None)
    )["parcel"].chains
    assert chain.statistic == EventStatistic(
        event="parcel", name="", epoch=(EpochStatistic(name="", reduction="mean"),)
    )
    assert chain.attribute == 0
    grouped = interface(define_epoch_stats("mean"), define_episode_stats("sum"), define_stats_grouping("zone"))
    assert events_of(grouped)["parcel"].chains[0].attribute == 1, "what groups is not what is reduced"


def test_step_statistic_takes_precedence_over_attribute_of_its_name():
    events = interface(
        define_epoch_stats("mean"),
        define_episode_stats("max", input_name="minutes"),
        define_step_stats("sum", input_name="minutes", output_name="minutes"),
    )
    (chain,) = events_of(events)["parcel"].chains
    assert chain.step is not None
    assert events_of(events)["parcel"].needs_steps


@pytest.mark.parametrize(
    ("decorators", "match"),
    [
        (
            [define_epoch_stats("mean", input_name="hours"), define_episode_stats("sum", "minutes", "minutes")],
            r"the event Events\.parcel has a statistic of the epoch with input_name 'hours'; expected .*"
            r"There are statistics of the episode: 'minutes'; correct",
        ),
        ([define_epoch_stats("mean")], r"with input_name None; .*statistics of the episode: none"),
        (
            [define_epoch_stats("mean"), define_episode_stats("sum", input_name="hours")],
            r"statistic of the episode with input_name 'hours'.*of the step: none; attributes: 'zone', 'minutes'",
        ),
        ([define_epoch_stats("mean"), define_episode_stats("sum")], r"input_name None.*attributes: 'zone', 'minutes'"),
        (
            [define_epoch_stats("mean"), define_episode_stats("sum", "km"), define_step_stats("sum", "miles", "km")],
            r"statistic of the step with input_name 'miles'.*attributes: 'zone', 'minutes'",
        ),
        (
            [define_epoch_stats("mean"), define_epoch_stats("max"), define_episode_stats("count")],
            r"two statistics of the epoch with output_name None; expected different names",
        ),
        (
            [define_epoch_stats("mean", "n"), *(define_episode_stats("count", None, "n") for _ in range(2))],
            r"two statistics of the episode with output_name 'n'",
        ),
        (
            [define_epoch_stats("mean"), define_episode_stats("count"), define_stats_grouping("place")],
            r"is grouped by \['place'\]; expected at most 8 of its attributes, \['zone', 'minutes'\]",
        ),
        (
            [define_epoch_stats("mean"), define_episode_stats("count", group_by="place")],
            r"is grouped by \['place'\]",
        ),
        ([define_episode_stats("count")], "no statistics of epochs; expected at least one: add @define_epoch_stats"),
        (
            [define_epoch_stats("mean", output_name="n\n"), define_episode_stats("count")],
            r"a statistic named 'n\\n'; expected at most 128 printable characters",
        ),
    ],
)  # fmt: skip
def test_rejects_impossible_declarations(decorators, match):
    with pytest.raises(StatisticsError, match=match):
        events_of(interface(*decorators))


@pytest.mark.parametrize("reduce", ["average", 3, None])
def test_rejects_unknown_reductions(reduce):
    with pytest.raises(StatisticsError, match=rf"reduce is {reduce!r}; expected one of 'mean', 'std'.*or a function"):
        define_step_stats(reduce)


def test_own_epoch_function_is_kept_beside_the_declaration():
    spread = functools.partial(np.percentile, q=90)
    declaration = events_of(interface(define_epoch_stats(spread, output_name="p90"), define_episode_stats("count")))[
        "parcel"
    ]
    assert declaration.own_epoch == {("parcel", "p90"): spread}
    assert declaration.chains[0].statistic.epoch[0].reduction == "own"


def test_rejects_interface_without_events_and_events_with_open_parameters():
    with pytest.raises(StatisticsError, match="int has no events; expected methods with @define_episode_stats"):
        events_of(int)
    decorators = (define_epoch_stats("mean"), define_episode_stats("count"))
    with pytest.raises(StatisticsError, match=r"has the attributes \['values'\]; expected plain attributes"):
        events_of(interface(*decorators, event=lambda self, **values: None))


def test_events_are_inherited():
    base = interface(define_epoch_stats("mean"), define_episode_stats("count"))

    class More(base):
        @define_epoch_stats("mean")
        @define_episode_stats("count")
        def letter(self):
            """Another."""

        def no_event(self):
            """Not decorated."""

    assert list(events_of(More)) == ["parcel", "letter"]
    assert list(events_of(EpisodeEvents)) == ["episode_return", "episode_length", "episode_count"]
