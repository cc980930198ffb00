import dataclasses
import enum
from typing import get_args

import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollcast.services.errors import InvalidInputError, InvalidSpaceError, ProtocolMismatchError, SpacesMismatchError
from rollcast.services.limits.limits import DEFAULT_LIMITS
from rollcast.services.limits.refusals import Throttled
from rollcast.services.policies.policies import PolicyHead, PolicySpec
from rollcast.services.replay.replay import ReplayStatus, ReplayWaiting
from rollcast.services.rollouts.join import JoinAgreement, JoinOffer
from rollcast.services.rollouts.join_codec import (
    join_agreement_from_proto,
    join_agreement_to_proto,
    join_offer_from_proto,
    join_offer_to_proto,
)
from rollcast.services.spaces.spaces import SubstepSpaces, leaf_order
from rollcast.services.status.codec import actor_from_proto, actor_to_proto, status_from_proto, status_to_proto
from rollcast.services.status.description import LearnerDescription, LearnerLimits
from rollcast.services.status.description_codec import description_from_proto, description_to_proto
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase
from rollcast.v1 import learner_pb2, replay_pb2, rollout_pb2
from tests.rollouts import NESTED

OFFER = JoinOffer(
    actor_id="a-1.x_Y",
    process_nonce=2**64 - 1,
    spaces=NESTED,
    n_envs=3,
    network="auto",
    software_version="1",
    incarnation=2,
    acknowledged_sequence=9,
)
AGREEMENT = JoinAgreement(
    actor_id=OFFER.actor_id,
    slot=1,
    incarnation=2,
    acknowledged_sequence=3,
    n_rollout_steps=4,
    env_seed=2**64 - 1,
    agent_seed=6,
    policy=PolicySpec(network="m:f", hidden_sizes=(8, 9), activation="relu", head="q_values"),
    max_message_bytes=7,
    n_envs=3,
    learner_nonce=2**64 - 1,
)

DESCRIPTION = LearnerDescription(
    spaces=NESTED,
    policy=PolicySpec(hidden_sizes=(3,), head="q_values"),
    n_rollout_steps=5,
    batch_size=6,
    n_envs=7,
    algorithm="dqn",
    software_version="1",
)


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
    replay=st.none() | REPLAY_STATUSES,
    throttled=st.lists(
        st.builds(Throttled, who=st.text(), limit=st.text(), times=st.integers(0, 2**64 - 1), idle_s=st.floats(0, 9)),
        max_size=3,
    ).map(tuple),
)
ACTORS = st.builds(
    ActorInfo,
    actor_id=st.text(),
    slot=st.integers(0, 99),
    incarnation=st.integers(0, 99),
    state=st.sampled_from(ActorState),
    idle_s=st.floats(0, 9),
    last_error=st.text(),
)


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
    [(Phase, learner_pb2.Phase, "PHASE_"), (ActorState, learner_pb2.ActorState, "ACTOR_STATE_")],
)
def test_enums_have_the_numbers_of_the_contract(values: type[enum.Enum], numbers, prefix):
    assert {prefix + value.name: value.value for value in values} | {prefix + "UNSPECIFIED": 0} == dict(numbers.items())


def test_unknown_enum_values_are_refused():
    with pytest.raises(InvalidInputError, match="phase 99"):
        status_from_proto(learner_pb2.LearnerStatus(phase=99))
    with pytest.raises(InvalidInputError, match="state 0"):
        actor_from_proto(learner_pb2.ActorInfo())


def test_join_round_trips():
    assert join_offer_from_proto(join_offer_to_proto(OFFER), peer="p") == dataclasses.replace(OFFER, peer="p")
    assert join_agreement_from_proto(join_agreement_to_proto(AGREEMENT), OFFER) == AGREEMENT


def test_the_order_of_a_learner_comes_with_its_agreement():
    box = spaces.Box(0, 1, (2,))
    mine = {"0": SubstepSpaces(observation=spaces.Dict([("b", box), ("a", box)]), action=spaces.Discrete(2))}
    theirs = {"0": SubstepSpaces(observation=spaces.Dict([("a", box), ("b", box)]), action=spaces.Discrete(2))}
    offer = dataclasses.replace(OFFER, spaces=mine)
    proto = join_agreement_to_proto(dataclasses.replace(AGREEMENT, spaces=theirs))
    agreement = join_agreement_from_proto(proto, offer)
    assert leaf_order(agreement.spaces) == [("0", "a"), ("0", "b")]
    with pytest.raises(SpacesMismatchError, match=r"actor 'a-1\.x_Y' has .*, the learner has"):
        join_agreement_from_proto(proto, OFFER)


def test_descriptions_travel():
    limits = LearnerLimits.of(dataclasses.replace(DEFAULT_LIMITS, max_actors=3, calls_per_second=0.5))
    assert (limits.max_actors, limits.max_message_bytes) == (3, 4 << 20)
    assert description_from_proto(description_to_proto(dataclasses.replace(DESCRIPTION, limits=limits))) == (
        dataclasses.replace(DESCRIPTION, limits=limits)
    )


def test_an_actor_may_leave_the_number_of_environments_to_the_learner():
    any_number = dataclasses.replace(OFFER, n_envs=0)
    assert join_offer_from_proto(join_offer_to_proto(any_number)) == any_number
    assert join_agreement_from_proto(join_agreement_to_proto(AGREEMENT), any_number).n_envs == 3


def test_a_learner_from_before_the_number_was_agreed_takes_what_was_offered():
    proto = join_agreement_to_proto(dataclasses.replace(AGREEMENT, n_envs=0, learner_nonce=0))
    agreement = join_agreement_from_proto(proto, OFFER)
    assert (agreement.n_envs, agreement.learner_nonce) == (OFFER.n_envs, 0)


@pytest.mark.parametrize(
    ("offered", "agreed", "message"),
    [
        (3, 4, "agreed to 4 environments for actor 'a-1.x_Y', which offered 3; expected what was offered"),
        (0, 0, "agreed to 0 environments for actor 'a-1.x_Y', which offered as many as it wants"),
        (0, 65537, "agreed to 65537 .* or 1 to 65536"),
    ],
)
def test_a_number_of_environments_that_cannot_be_agreed_is_refused(offered: int, agreed: int, message: str):
    proto = join_agreement_to_proto(dataclasses.replace(AGREEMENT, n_envs=agreed))
    with pytest.raises(InvalidInputError, match=message):
        join_agreement_from_proto(proto, dataclasses.replace(OFFER, n_envs=offered))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"actor_id": "a b"}, InvalidInputError, "'a b'"),
        ({"actor_id": "a\n"}, InvalidInputError, "actor_id"),
        ({"actor_id": "a" * 129}, InvalidInputError, "128 characters"),
        ({"network": ""}, InvalidInputError, "network"),
        ({"protocol_version": 2}, ProtocolMismatchError, "version 2; expected 1"),
        ({"substeps": []}, InvalidSpaceError, "no substep"),
    ],
)
def test_malformed_offers_are_refused(changes, error, message):
    proto = join_offer_to_proto(OFFER)
    for name, value in changes.items():
        if value == []:
            proto.ClearField(name)
        else:
            setattr(proto, name, value)
    with pytest.raises(error, match=message):
        join_offer_from_proto(proto)


@pytest.mark.parametrize("head", get_args(PolicyHead))
def test_heads_travel_and_the_default_is_the_absent_one(head):
    agreement = dataclasses.replace(AGREEMENT, policy=PolicySpec(head=head))
    proto = join_agreement_to_proto(agreement)
    assert proto.policy.head == ("" if head == "default" else head)
    assert join_agreement_from_proto(proto, OFFER) == agreement
    proto.policy.head = head  # spelt out, as another learner may
    assert join_agreement_from_proto(proto, OFFER) == agreement


def test_malformed_agreements_are_refused():
    proto = join_agreement_to_proto(AGREEMENT)
    proto.policy.head = "gaussian"
    with pytest.raises(InvalidInputError, match="head 'gaussian'; expected one of \\['default', "):
        join_agreement_from_proto(proto, OFFER)
    proto.policy.activation = "gelu"
    with pytest.raises(InvalidInputError, match="'gelu'"):
        join_agreement_from_proto(proto, OFFER)
    with pytest.raises(InvalidInputError, match="incarnation 0"):
        join_agreement_from_proto(rollout_pb2.JoinResponse(actor_id="a"), OFFER)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actor_id": "b"}, "calls this actor 'b', which offered 'a-1.x_Y'"),
        ({"incarnation": 2**62 + 1}, "continues from incarnation 4611686018427387905"),
        ({"acknowledged_sequence": 2**64 - 1}, "continues from rollout 18446744073709551615; expected at most"),
        ({"awaiting_s": float("nan")}, "has waited for nan s; expected a finite number"),
        ({"awaiting_s": float("inf")}, "has waited for inf s"),
        ({"awaiting_s": -1.0}, r"has waited for -1\.0 s"),
        ({"policy": PolicySpec(hidden_sizes=(1,) * 1000)}, "1000 hidden layers"),
        ({"policy": PolicySpec(hidden_sizes=(8, 0))}, r"the first of \[8, 0\]; expected .* each of at least 1"),
        ({"policy": PolicySpec(network="n" * 513)}, "a name of 513 characters; expected at most 512"),
    ],
)
def test_an_actor_refuses_what_no_learner_means(changes: dict[str, object], message: str):
    proto = join_agreement_to_proto(dataclasses.replace(AGREEMENT, **changes))
    with pytest.raises(InvalidInputError, match=message):
        join_agreement_from_proto(proto, OFFER)


@pytest.mark.parametrize("name", ["a b", "\x1b[2J", "a" * 129])
def test_an_unnamed_actor_refuses_a_name_that_is_none(name: str):
    proto = join_agreement_to_proto(dataclasses.replace(AGREEMENT, actor_id=name))
    with pytest.raises(InvalidInputError, match="which offered ''; expected"):
        join_agreement_from_proto(proto, dataclasses.replace(OFFER, actor_id=""))
