import numpy as np
import pytest
from gymnasium import spaces

from rollcast.services.client.channel import make_channel
from rollcast.services.errors import (
    ActorReplacedError,
    DamagedMessageError,
    InvalidInputError,
    LearnerUnreachableError,
    ProtocolMismatchError,
    RollcastError,
    SpacesMismatchError,
)
from rollcast.services.policies.codec import encode_policy
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.spaces.spaces import SubstepSpaces
from rollcast.services.wire.seal import parse_sealed, seal
from rollcast.v1 import rollout_pb2
from tests.integration.learner_fakes import DEADLINE_S, SPACES, offer
from tests.rollouts import assert_same_rollout, make_rollout
from tests.unit.services.raw_streams import opening, raw_stream

PIXELS = {"0": SubstepSpaces(observation=spaces.Box(0, 255, (64, 64), np.uint8), action=spaces.Discrete(4))}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"actor_id": "a b"}, InvalidInputError),
        ({"protocol_version": 9}, ProtocolMismatchError),
        ({"spaces": PIXELS}, SpacesMismatchError),
        (
            {
                "spaces": {
                    "0": SubstepSpaces(observation=SPACES["0"].observation, action=spaces.Dict(a=spaces.Discrete(2)))
                }
            },
            InvalidInputError,
        ),
    ],
)
def test_join_refuses_and_goes_on(client, changes, error):
    with pytest.raises(error) as caught:
        client.join(offer(**changes))
    assert type(caught.value) is not RollcastError
    assert client.join(offer("other")).actor_id == "other"


def test_rollouts_are_acknowledged_one_by_one_and_the_close_is_clean(learner, uplink):
    rollouts = [make_rollout(sequence) for sequence in range(1, 21)]
    for rollout in rollouts:
        uplink.send(rollout)
    acknowledged = []
    for progress in uplink.responses():
        acknowledged.append(progress.acknowledged_sequence)
        if progress.acknowledged_sequence == 20:
            uplink.close()
    assert acknowledged == list(range(21))
    assert learner.sink.streams[0].closes == [True]
    for mine, theirs in zip(learner.sink.rollouts, rollouts, strict=True):
        assert_same_rollout(mine, theirs)


def test_full_queue_delays_the_answer_but_no_control_call(learner, client, uplink):
    learner.sink.capacity = 1
    responses = uplink.responses()
    for sequence in (1, 2):
        uplink.send(make_rollout(sequence))
    assert [next(responses).acknowledged_sequence for _ in range(2)] == [0, 1]
    learner.sink.wait_for(lambda: learner.sink.waiting == 1)
    assert client.status().env_steps == 12
    with learner.sink.changed:
        learner.sink.rollouts.clear()
        learner.sink.changed.notify_all()
    assert next(responses).acknowledged_sequence == 2


def test_actor_that_vanishes_while_the_queue_is_full_is_closed_uncleanly(learner, uplink):
    learner.sink.capacity = 0
    uplink.send(make_rollout(1))
    next(uplink.responses())
    learner.sink.wait_for(lambda: learner.sink.waiting == 1)
    uplink.cancel()
    learner.sink.wait_for(lambda: learner.sink.streams[0].closes == [False])


def test_an_error_of_accept_ends_the_stream(learner, uplink):
    learner.sink.accept_error = ActorReplacedError("another process has joined as 'a'")
    uplink.send(make_rollout(1))
    with pytest.raises(ActorReplacedError, match="another process"):
        list(uplink.responses())
    assert learner.sink.streams[0].closes == [False]


def test_the_end_of_training_ends_the_stream_cleanly(learner, uplink):
    learner.sink.ended = True
    uplink.send(make_rollout(1))
    assert [progress.end_of_training for progress in uplink.responses()] == [False, True]
    learner.sink.wait_for(lambda: learner.sink.streams[0].closes == [True])


def test_the_sink_can_cancel_a_silent_stream(learner, uplink):
    responses = uplink.responses()
    next(responses)
    learner.sink.streams[0].cancel()
    with pytest.raises(LearnerUnreachableError, match="ended the call"):
        next(responses)
    learner.sink.wait_for(lambda: learner.sink.streams[0].closes == [False])


def test_damaged_message_is_refused_so_that_it_is_sent_again(learner, client):
    client.join(offer())
    (sent,) = RolloutEncoder().encode(make_rollout())
    damaged = bytearray(sent)
    damaged[-1] ^= 1
    error = raw_stream(learner.address, seal(opening()), bytes(damaged))
    assert type(error) is DamagedMessageError
    assert "damaged in transit" in str(error)
    error = raw_stream(learner.address, seal(opening()), opening())
    assert type(error) is DamagedMessageError
    assert "it has no digest" in str(error)
    assert not learner.sink.rollouts
    assert not learner.sink.rejections, "nothing is wrong with what was played"
    assert raw_stream(learner.address, opening(), sent) is None
    assert len(learner.sink.rollouts) == 1


def policy(version):
    return encode_policy(version, {"w": np.full(3, version, np.float32)})


def test_an_answer_brings_the_policy_before_its_credit(learner, client):
    client.join(offer())
    learner.sink.policy = policy(4)
    came = []
    uplink = client.open_rollout_stream(
        "a", 1, on_policy=lambda version, state, _: came.append((version, *state["w"])), policy_version=3
    )
    responses = uplink.responses()
    next(responses)
    assert came == [(4, 4, 4, 4)]
    for sequence in (1, 2, 3):
        if sequence != 2:
            learner.sink.policy = policy(4 + sequence)
        uplink.send(make_rollout(sequence))
        assert next(responses).acknowledged_sequence == sequence
        assert [version for version, *_ in came] == [4, 5, 7][: 1 + (sequence + 1) // 2]
    assert learner.sink.held_versions == [3, None, None, None], "the learner hears once which one the actor has"
    uplink.close()
    assert list(responses) == []


def test_an_actor_that_takes_no_policies_with_answers_gets_none(learner, uplink):
    learner.sink.policy = policy(4)
    responses = uplink.responses()
    next(responses)
    uplink.send(make_rollout(1))
    assert next(responses).acknowledged_sequence == 1
    assert learner.sink.held_versions == []


def test_an_answer_with_a_policy_is_an_ordinary_sealed_message(learner, client):
    client.join(offer())
    learner.sink.policy = policy(4)
    opening = rollout_pb2.OpenStream(actor_id="a", incarnation=1, takes_policies=True)
    request = rollout_pb2.StreamRolloutsRequest(open=opening).SerializeToString()
    with make_channel(learner.address) as channel:
        call = channel.stream_stream("/rollcast.v1.RolloutService/StreamRollouts")(iter([request]), timeout=DEADLINE_S)
        serialized = next(call)
        call.cancel()
    message = parse_sealed(rollout_pb2.StreamRolloutsResponse, serialized)
    assert message.SerializeToString() == serialized
    assert (message.credit_sequence, message.policy.version) == (4, 4)
    damaged = bytearray(serialized)
    damaged[len(serialized) // 2] ^= 1
    with pytest.raises(DamagedMessageError):
        parse_sealed(rollout_pb2.StreamRolloutsResponse, bytes(damaged))
