import dataclasses
import enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.services.errors import InvalidInputError
from rollcast.services.history.history import EventSeverity, LearnerActivity
from rollcast.services.joining.activity import ActingState
from rollcast.services.joining.join import JoinAgreement
from rollcast.services.limits.refusals import Throttled
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.replay.replay import ReplayStatus, ReplayWaiting
from rollcast.services.status.codec import actor_from_proto, actor_to_proto, status_from_proto, status_to_proto
from rollcast.services.status.description import LearnerDescription, LearnerLimits
from rollcast.services.status.description_codec import description_from_proto, description_to_proto
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, LearningFinding, Phase
from rollcast.v1 import history_pb2, learner_pb2, replay_pb2, rollout_pb2
from tests.rollouts import NESTED

REPLAY_STATUSES = st.builds(
    ReplayStatus,
    **{name: st.integers(0, 2**64 - 1) for name in ("size", "capacity", "n_bytes", "inserted", "sampled", "min_size")},
    **{name: st.floats(allow_nan=False) for name in ("difference", "min_diff", "max_diff")},
    waiting=st.lists(
        st.builds(ReplayWaiting, reason=st.text(), seconds=st.floats(0, 9), who=st.text()), max_size=3
    ).map(tuple),
)


STATUSES = st.builds(
    LearnerStatus,
    phase=st.sampled_from(Phase),
    env_steps=st.integers(0, 2**64 - 1),
    mean_return=st.none() | st.floats(allow_nan=False),
    waiting_for=st.text(),
    waiting_s=st.floats(0, 9),
    stale_trajectories=st.integers(0, 2**64 - 1),
    dropped_episodes=st.integers(0, 2**64 - 1),
    replay=st.none() | REPLAY_STATUSES,
    throttled=st.lists(
        st.builds(Throttled, who=st.text(), limit=st.text(), times=st.integers(0, 2**64 - 1), idle_s=st.floats(0, 9)),
        max_size=3,
    ).map(tuple),
    findings=st.lists(st.builds(LearningFinding, rule=st.text(), what=st.text(), advice=st.text()), max_size=3).map(
        tuple
    ),
)


ACTORS = st.builds(
    ActorInfo,
    actor_id=st.text(),
    slot=st.integers(0, 99),
    incarnation=st.integers(0, 99),
    state=st.sampled_from(ActorState),
    idle_s=st.floats(0, 9),
    last_error=st.text(),
    acting_state=st.none() | st.sampled_from(ActingState),
    applied_policy_version=st.integers(0, 2**64 - 1),
    **dict.fromkeys(("env_steps_per_second", "answer_p50_s", "answer_p99_s"), st.floats(0, 1e9)),
)


@pytest.mark.slow
@given(STATUSES)
def test_status_round_trip(status):
    assert status_from_proto(status_to_proto(status)) == status


@given(ACTORS)
def test_actor_round_trip(actor):
    assert actor_from_proto(actor_to_proto(actor)) == actor


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (LearnerStatus, learner_pb2.LearnerStatus),
        (Throttled, learner_pb2.Throttled),
        (ActorInfo, learner_pb2.ActorInfo),
        (LearningFinding, learner_pb2.LearningFinding),
        (ReplayStatus, replay_pb2.ReplayStatus),
        (ReplayWaiting, replay_pb2.ReplayWaiting),
        (JoinAgreement, rollout_pb2.JoinResponse),
        (LearnerDescription, learner_pb2.LearnerDescription),
        (LearnerLimits, learner_pb2.LearnerLimits),
    ],
)
def test_values_have_the_fields_of_the_contract(value, message):
    # a digest is of the message, not of what it says; and values have the spaces of all substeps in one field
    own = {field.name.replace("spaces", "substeps") for field in dataclasses.fields(value)}
    assert own == set(message.DESCRIPTOR.fields_by_name) - {"digest"}


@pytest.mark.parametrize(
    ("values", "numbers", "prefix"),
    [
        (Phase, learner_pb2.Phase, "PHASE_"),
        (ActorState, learner_pb2.ActorState, "ACTOR_STATE_"),
        (ActingState, rollout_pb2.ActingState, "ACTING_STATE_"),
        (LearnerActivity, history_pb2.LearnerActivity, "LEARNER_ACTIVITY_"),
        (EventSeverity, history_pb2.EventSeverity, "EVENT_SEVERITY_"),
    ],
)
def test_enums_have_the_numbers_of_the_contract(values: type[enum.Enum], numbers, prefix):
    assert {prefix + value.name: value.value for value in values} | {prefix + "UNSPECIFIED": 0} == dict(numbers.items())


def test_rejects_unknown_enum_values():
    with pytest.raises(InvalidInputError, match="phase 99"):
        status_from_proto(learner_pb2.LearnerStatus(phase=99))
    with pytest.raises(InvalidInputError, match="state 0"):
        actor_from_proto(learner_pb2.ActorInfo())


DESCRIPTION = LearnerDescription(
    spaces=NESTED,
    policy=PolicySpec(hidden_sizes=(3,), head="q_values"),
    n_rollout_steps=5,
    batch_size=6,
    n_envs=7,
    algorithm="dqn",
    software_version="1",
)


def test_description_comes_back():
    limits = LearnerLimits(max_actors=3, calls_per_second=0.5)
    assert (limits.max_actors, limits.max_message_bytes) == (3, 4 << 20)
    assert description_from_proto(description_to_proto(dataclasses.replace(DESCRIPTION, limits=limits))) == (
        dataclasses.replace(DESCRIPTION, limits=limits)
    )
