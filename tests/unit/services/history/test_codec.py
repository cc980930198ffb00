import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.services.errors import InvalidInputError
from rollcast.services.history.codec import update_to_protos, updates_from_protos
from rollcast.services.history.history import (
    EvaluationPoint,
    EventSeverity,
    HistoryEvent,
    HistoryPoint,
    HistoryUpdate,
    Lane,
    LearnerActivity,
    MetricCurve,
    PolicyDelays,
    RunFacts,
)
from rollcast.services.joining.activity import ActingState
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase
from rollcast.v1 import history_pb2
from tests.unit.services.status.test_codec import ACTORS

COUNTS, FLOATS, NAMES = st.integers(0, 2**64 - 1), st.floats(allow_nan=False), st.text(max_size=9)
MAYBE = st.none() | FLOATS
POINTS = st.builds(
    HistoryPoint,
    time_s=FLOATS,
    interval_s=FLOATS,
    **dict.fromkeys(("env_steps", "updates", "policy_version", "episodes", "queue_size"), COUNTS),
    **dict.fromkeys(("env_steps_per_second", "waiting_fraction"), FLOATS),
    mean_return=MAYBE,
    actors_alive=st.integers(0, 2**32 - 1),
    replay_size=st.none() | COUNTS,
)
EVALUATIONS = st.builds(
    EvaluationPoint,
    **dict.fromkeys(("env_steps", "policy_version"), COUNTS),
    **dict.fromkeys(("time_s", "mean_return", "ci_low", "ci_high"), FLOATS),
    best=st.booleans(),
)
EVENTS = st.builds(
    HistoryEvent, time_s=FLOATS, severity=st.sampled_from(EventSeverity), who=NAMES, text=NAMES, detail=NAMES
)
FACTS = st.builds(
    RunFacts,
    **dict.fromkeys(("env_id", "algorithm", "run_dir", "software_version", "settings"), NAMES),
    seed=st.none() | COUNTS,
    stop_return=MAYBE,
    started_unix_s=FLOATS,
)
DELAYS = st.builds(
    PolicyDelays,
    trajectories_by_lag=st.lists(COUNTS, max_size=33).map(tuple),
    max_policy_lag=st.none() | COUNTS,
    **dict.fromkeys(("data_age_p50_s", "data_age_p99_s", "publish_lag_p50_s", "publish_lag_p99_s"), MAYBE),
)


def make_curve(metric: str, values: list[tuple[float, int, float]]) -> MetricCurve:
    time_s, env_steps, numbers = zip(*values, strict=True) if values else ((), (), ())
    return MetricCurve(metric=metric, time_s=time_s, env_steps=env_steps, values=numbers)


def make_lane(name: str, n_intervals: int, seed: int) -> Lane:
    n_states = len(ActingState if name else LearnerActivity)
    shares = np.random.default_rng(seed).integers(0, 256, (n_intervals, n_states), np.uint8)
    return Lane(actor_id=name, interval_s=15.0, end_s=60.0, shares=shares)


LANES = st.builds(make_lane, NAMES, st.integers(0, 5), st.integers(0, 99))
UPDATES = st.builds(
    HistoryUpdate,
    now_s=FLOATS,
    run=st.none() | FACTS,
    status=st.builds(LearnerStatus, phase=st.sampled_from(Phase), env_steps=COUNTS),
    actors=st.lists(ACTORS, max_size=2).map(tuple),
    points=st.lists(POINTS, max_size=2).map(tuple),
    evaluations=st.lists(EVALUATIONS, max_size=2).map(tuple),
    lanes=st.lists(LANES, max_size=3).map(tuple),
    events=st.lists(EVENTS, max_size=2).map(tuple),
    delays=DELAYS,
    curves=st.lists(
        st.builds(make_curve, NAMES, st.lists(st.tuples(FLOATS, COUNTS, FLOATS), max_size=3)), max_size=2
    ).map(tuple),
)


@pytest.mark.slow
@given(st.lists(UPDATES, max_size=3))
def test_updates_come_back_as_they_were(updates):
    protos = [proto for update in updates for proto in update_to_protos(update)]
    wire = [history_pb2.WatchHistoryResponse.FromString(proto.SerializeToString()) for proto in protos]
    assert list(updates_from_protos(wire)) == updates


def many_lanes() -> HistoryUpdate:
    lanes = tuple(make_lane(f"actor-{i}", 540, i) for i in range(1000))
    return HistoryUpdate(now_s=3.0, status=LearnerStatus(phase=Phase.TRAINING), lanes=lanes)


def many_actors_and_events() -> HistoryUpdate:
    return HistoryUpdate(
        now_s=3.0,
        status=LearnerStatus(phase=Phase.TRAINING),
        points=(HistoryPoint(time_s=1.0, interval_s=1.0),),
        actors=tuple(
            ActorInfo(actor_id=f"{i}", slot=i, incarnation=1, state=ActorState.FAILED, last_error="x" * 2000)
            for i in range(1000)
        ),
        events=(HistoryEvent(time_s=1.0, severity=EventSeverity.ERROR, who="a", text="b", detail="c" * 8000),) * 300,
    )


@pytest.mark.parametrize(("many", "n_messages"), [(many_lanes, 4), (many_actors_and_events, 5)])
def test_an_update_with_many_is_cut_into_messages_of_bounded_size(many, n_messages):
    update = many()
    messages = list(update_to_protos(update))
    assert len(messages) == n_messages
    assert max(message.ByteSize() for message in messages) < 1_100_000
    assert [message.continues for message in messages] == [True] * (len(messages) - 1) + [False]
    assert all(message.HasField("status") == (i == 0) for i, message in enumerate(messages))
    assert list(updates_from_protos(messages)) == [update]


def test_an_update_whose_last_message_has_not_come_is_not_there_yet():
    messages = list(update_to_protos(many_lanes()))
    assert list(updates_from_protos(messages[:-1])) == []


def test_a_curve_with_more_times_than_values_is_refused():
    (proto,) = update_to_protos(HistoryUpdate(now_s=1.0, status=LearnerStatus(phase=Phase.TRAINING)))
    proto.curves.add(metric="loss", time_s=[1.0, 2.0], env_steps=[1, 2], values=[0.5])
    with pytest.raises(InvalidInputError, match=r"the curve of 'loss' has 2 times, 2 steps and 1 values"):
        list(updates_from_protos([proto]))


def test_lanes_that_differ_are_not_equal():
    lane = make_lane("a", 3, 1)
    assert lane != make_lane("a", 3, 2)
    assert lane != dataclasses.replace(lane, end_s=1.0)
    assert lane != "a"


def test_an_event_of_a_severity_that_is_unknown_is_a_warning():
    update = HistoryUpdate(
        now_s=1.0,
        status=LearnerStatus(phase=Phase.TRAINING),
        events=(HistoryEvent(time_s=1.0, severity=EventSeverity.INFO, who="", text="x"),),
    )
    (message,) = update_to_protos(update)
    message.events[0].severity = 99
    (found,) = updates_from_protos([message])
    assert found.events[0].severity is EventSeverity.WARNING


def test_an_actor_that_does_what_is_unknown_is_shown_without_it():
    actor = ActorInfo(actor_id="a", slot=0, incarnation=1, state=ActorState.STREAMING, acting_state=ActingState.ACTING)
    (message,) = update_to_protos(HistoryUpdate(now_s=1.0, status=LearnerStatus(phase=Phase.TRAINING), actors=(actor,)))
    message.actors[0].acting_state = 99
    (found,) = updates_from_protos([message])
    assert found.actors == (dataclasses.replace(actor, acting_state=None),)


@pytest.mark.parametrize(("name", "whose"), [("a", "actor 'a'"), ("", "the learner")])
def test_a_lane_with_another_number_of_states_is_refused(name, whose):
    update = HistoryUpdate(now_s=1.0, status=LearnerStatus(phase=Phase.TRAINING), lanes=(make_lane(name, 2, 0),))
    (message,) = update_to_protos(update)
    message.lanes[0].shares += b"\0"
    with pytest.raises(InvalidInputError, match=f"the lane of {whose} has 1[13] shares"):
        list(updates_from_protos([message]))
