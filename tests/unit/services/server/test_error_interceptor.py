"""Errors of handlers arrive as rich statuses."""

import pytest

from rollcast.services.client.channel import make_channel
from rollcast.services.errors import (
    ActorReplacedError,
    InvalidRolloutError,
    LimitExceededError,
    NotReadyError,
    RollcastError,
    UnreadableMessageError,
)
from rollcast.v1 import rollout_pb2, rollout_pb2_grpc
from tests.integration.learner_fakes import DEADLINE_S, offer
from tests.unit.services.raw_streams import opening, raw_stream


@pytest.mark.parametrize("error", [NotReadyError("starting"), LimitExceededError("full"), ActorReplacedError("x")])
def test_errors_of_the_learner_arrive_unchanged(learner, client, error):
    learner.sink.join_error = error
    with pytest.raises(type(error), match=str(error)):
        client.join(offer())


def test_unexpected_exception_becomes_internal_and_is_logged(learner, client, caplog):
    learner.sink.join_error = KeyError("oops")
    with pytest.raises(RollcastError, match="KeyError: 'oops'"):
        client.join(offer())
    assert "Traceback" in caplog.text
    learner.sink.join_error = None
    client.join(offer())


def test_rejects_bytes_that_do_not_parse(learner, client):
    client.join(offer())
    error = raw_stream(learner.address, b"\xff\xff\xff")
    assert type(error) is UnreadableMessageError
    assert "3 bytes that do not parse" in str(error)
    error = raw_stream(learner.address, opening(), opening()[:-1])
    assert type(error) is UnreadableMessageError
    assert len(learner.sink.rejections) == 1
    error = raw_stream(learner.address, b"")
    assert type(error) is InvalidRolloutError
    assert "began with an empty message" in str(error)
    assert raw_stream(learner.address) is None
    assert type(raw_stream(learner.address, opening(), opening())) is InvalidRolloutError
    learner.sink.wait_for(lambda: all(stream.closes == [False] for stream in learner.sink.streams))


def test_an_oversized_message_is_refused_by_limit(learner, client):
    client.join(offer())
    assert type(raw_stream(learner.address, opening(), bytes(5 << 20))) is LimitExceededError
    assert client.status().env_steps == 12


def test_generated_stub_gets_a_rich_status(learner):
    with make_channel(learner.address) as channel:
        stub = rollout_pb2_grpc.RolloutServiceStub(channel)
        with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
            stub.Join(rollout_pb2.JoinRequest(protocol_version=1, actor_id="?"), timeout=DEADLINE_S)
        assert "grpc-status-details-bin" in dict(caught.value.trailing_metadata())
