"""Values of events on the wire; what must not come from it is in tests/attacks."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.services.rollouts.codec import RolloutEncoder, rollout_to_proto
from rollcast.services.rollouts.rollouts import EpisodeStatistics
from rollcast.services.rollouts.statistics import EpochStatistic, EventStatistic, EventValue
from rollcast.services.streams.receiver import parse_request
from tests.rollouts import NESTED, assert_same_rollout, random_rollout
from tests.unit.services.rollouts.test_codec import assemble

NAMES = st.text(st.characters(categories=("L", "N", "Zs")), max_size=8).filter(str.isprintable)
REDUCTIONS = st.sampled_from(["mean", "std", "min", "max", "sum", "count", "median", "own"])
STATISTICS = st.builds(
    EventStatistic,
    event=NAMES.filter(bool),
    name=NAMES,
    epoch=st.lists(
        st.builds(EpochStatistic, name=NAMES, reduction=REDUCTIONS, cumulative=st.booleans()), min_size=1, max_size=3
    ).map(tuple),
)
VALUES = st.lists(
    st.builds(
        EventValue,
        STATISTICS,
        st.lists(NAMES, max_size=3).map(tuple),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    max_size=4,
).map(tuple)
EPISODES = st.lists(
    st.builds(EpisodeStatistics, st.integers(0, 1), st.just(1.5), st.integers(0, 9), VALUES), max_size=4
).map(tuple)


@pytest.mark.slow
@given(st.lists(st.tuples(EPISODES, VALUES), min_size=1, max_size=3))
@settings(max_examples=30)
def test_round_trip_of_one_rollout_after_the_other(rollouts):
    """An encoder keeps its header: nothing of the rollout before may stay."""
    encoder = RolloutEncoder()
    for episodes, events in rollouts:
        rollout = random_rollout(NESTED, 3, 2, episodes=episodes, events=events)
        (message,) = encoder.encode(rollout)
        sent = parse_request(message).request.rollout
        assert len(sent.event_statistics) == len(
            {value.statistic for values in (*(e.events for e in episodes), events) for value in values}
        )
        assert_same_rollout(assemble(NESTED, rollout, 3, 2), rollout)


def test_without_events_nothing_is_added():
    rollout = random_rollout(NESTED, 3, 2)
    bare = dataclasses.replace(rollout, episodes=())
    episode = rollout_to_proto(rollout).episodes[0]
    assert rollout_to_proto(rollout).ByteSize() - rollout_to_proto(bare).ByteSize() == episode.ByteSize() + 2
