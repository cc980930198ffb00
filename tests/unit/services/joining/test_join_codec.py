import dataclasses

import pytest
from gymnasium import spaces

from rollcast.services.errors import InvalidInputError, InvalidSpaceError, ProtocolMismatchError, SpacesMismatchError
from rollcast.services.joining.evaluation import EvaluationPlan
from rollcast.services.joining.join import ActorRole, JoinAgreement, JoinOffer
from rollcast.services.joining.join_codec import (
    join_agreement_from_proto,
    join_agreement_to_proto,
    join_offer_from_proto,
    join_offer_to_proto,
)
from rollcast.services.limits.limits import MAX_NAME_LENGTH
from rollcast.services.limits.texts import shortened
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces, leaf_order
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


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        ({}, {}),
        ({"role": ActorRole.EVALUATE}, {"evaluation": EvaluationPlan(n_episodes=3, seed=4)}),
        ({"n_envs": 0}, {}),  # the learner says how many environments
        *(
            ({"follows_redirect": True}, {"learner_address": address})
            for address in ("host:1", "[::1]:1", "unix:/tmp/learner.sock")
        ),
    ],
)
def test_offer_and_agreement_come_back(offered: dict[str, object], agreed: dict[str, object]):
    offer, agreement = dataclasses.replace(OFFER, **offered), dataclasses.replace(AGREEMENT, **agreed)
    assert join_offer_from_proto(join_offer_to_proto(offer), peer="p") == dataclasses.replace(offer, peer="p")
    assert join_agreement_from_proto(join_agreement_to_proto(agreement), offer) == agreement


def test_evaluator_refuses_learner_that_takes_it_for_an_actor():
    offer = dataclasses.replace(OFFER, role=ActorRole.EVALUATE)
    with pytest.raises(ProtocolMismatchError, match=r"treats evaluator 'a-1.x_Y' as an actor; expected a learner that"):
        join_agreement_from_proto(join_agreement_to_proto(AGREEMENT), offer)


def test_rejects_role_that_is_unknown_here():
    proto = join_offer_to_proto(OFFER)
    proto.role = 7
    with pytest.raises(ProtocolMismatchError, match=r"actor 'a-1.x_Y' has role 7; expected one of \[0, 1\]; install"):
        join_offer_from_proto(proto)


def test_agreement_carries_the_learners_order_of_spaces():
    box = spaces.Box(0, 1, (2,))
    mine = {"0": SubstepSpaces(observation=spaces.Dict([("b", box), ("a", box)]), action=spaces.Discrete(2))}
    theirs = {"0": SubstepSpaces(observation=spaces.Dict([("a", box), ("b", box)]), action=spaces.Discrete(2))}
    offer = dataclasses.replace(OFFER, spaces=mine)
    proto = join_agreement_to_proto(dataclasses.replace(AGREEMENT, spaces=theirs))
    agreement = join_agreement_from_proto(proto, offer)
    assert leaf_order(agreement.spaces) == [("0", "a"), ("0", "b")]
    with pytest.raises(SpacesMismatchError, match=r"actor 'a-1\.x_Y' has .*, the learner has"):
        join_agreement_from_proto(proto, OFFER)


def test_offered_number_of_environments_holds_for_old_learners():
    proto = join_agreement_to_proto(dataclasses.replace(AGREEMENT, n_envs=0, learner_nonce=0))
    agreement = join_agreement_from_proto(proto, OFFER)
    assert (agreement.n_envs, agreement.learner_nonce) == (OFFER.n_envs, 0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"actor_id": "a b"}, InvalidInputError, "'a b'"),
        ({"actor_id": "a\n"}, InvalidInputError, "actor_id"),
        ({"actor_id": "a" * 129}, InvalidInputError, "128 characters"),
        ({"network": ""}, InvalidInputError, "network"),
        ({"protocol_version": 2}, ProtocolMismatchError, "version 2; expected 1"),
        ({"substeps": []}, InvalidSpaceError, "no substep"),
        (
            {"incarnation": 2**62 + 1},
            InvalidInputError,
            "'a-1.x_Y' continues from incarnation 4611686018427387905",
        ),
        ({"acknowledged_sequence": 2**64 - 1}, InvalidInputError, "continues from rollout 18446744073709551615"),
    ],
)
def test_rejects_malformed_offer(changes, error, message):
    proto = join_offer_to_proto(OFFER)
    for name, value in changes.items():
        if value == []:
            proto.ClearField(name)
        else:
            setattr(proto, name, value)
    with pytest.raises(error, match=message):
        join_offer_from_proto(proto)


def test_a_long_version_is_cut():
    proto = join_offer_to_proto(dataclasses.replace(OFFER, software_version="1" * 10**6))
    assert join_offer_from_proto(proto).software_version == shortened("1" * 10**6, MAX_NAME_LENGTH)


ELSEWHERE = r"sends this actor to .*; expected host:port or unix:/path"
UNNAMED = "which offered ''; expected"


@pytest.mark.parametrize(
    ("offered", "changes", "message"),
    [
        ({}, {"actor_id": "b"}, "calls this actor 'b', which offered 'a-1.x_Y'"),
        ({}, {"incarnation": 0}, "incarnation 0"),
        ({}, {"incarnation": 2**62 + 1}, "continues from incarnation 4611686018427387905"),
        ({}, {"acknowledged_sequence": 2**64 - 1}, "continues from rollout 18446744073709551615; expected at most"),
        ({}, {"awaiting_s": float("nan")}, "has waited for nan s; expected a finite number"),
        ({}, {"awaiting_s": float("inf")}, "has waited for inf s"),
        ({}, {"awaiting_s": -1.0}, r"has waited for -1\.0 s"),
        ({}, {"activity_interval_s": 0.01}, r"report of the time every 0\.01 s; expected 0\.1 to 3600"),
        ({}, {"activity_interval_s": float("nan")}, "every nan s"),
        ({}, {"policy": PolicySpec(hidden_sizes=(1,) * 1000)}, "1000 hidden layers"),
        (
            {},
            {"n_envs": 4},
            "agreed to 4 environments for actor 'a-1.x_Y', which offered 3; expected the offered number",
        ),
        ({"n_envs": 0}, {"n_envs": 0}, "agreed to 0 environments for actor 'a-1.x_Y', which offered any number"),
        ({"n_envs": 0}, {"n_envs": 65537}, "agreed to 65537 .* or 1 to 65536"),
        ({"actor_id": ""}, {"actor_id": "a b"}, UNNAMED),
        ({"actor_id": ""}, {"actor_id": "\x1b[2J"}, UNNAMED),
        ({"actor_id": ""}, {"actor_id": "a" * 129}, UNNAMED),
        ({}, {"learner_address": "host:1"}, "redirects this actor a second time, to .host:1.; expected to be accepted"),
        ({"follows_redirect": True}, {"learner_address": "host"}, ELSEWHERE),
        ({"follows_redirect": True}, {"learner_address": "file:/etc/passwd"}, ELSEWHERE),
        ({"follows_redirect": True}, {"learner_address": "host:1" + "0" * 300}, ELSEWHERE),
        ({"follows_redirect": True}, {"learner_address": "\x1b[2J:1"}, ELSEWHERE),
    ],
)
def test_rejects_agreement_that_no_learner_sends(offered: dict[str, object], changes: dict[str, object], message: str):
    proto = join_agreement_to_proto(dataclasses.replace(AGREEMENT, **changes))
    with pytest.raises(InvalidInputError, match=message):
        join_agreement_from_proto(proto, dataclasses.replace(OFFER, **offered))
