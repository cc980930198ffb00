"""Texts of actors that are as long as a message may be: they are cut, and every answer about actors still fits one."""

from collections.abc import Callable

import pytest

from rollcast.services.client.channel import make_channel
from rollcast.services.errors import InvalidRolloutError, UnknownActorError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.limits.limits import MAX_REASON_LENGTH, MAX_TRACEBACK_LENGTH, Limits
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.status.status import ActorState
from rollcast.v1 import learner_pb2, learner_pb2_grpc, rollout_pb2
from tests.attacks.served_intake import serve_intake
from tests.integration.learner_fakes import offer
from tests.processes import wait_until
from tests.rollouts import make_rollout
from tests.unit.services.raw_streams import opening, raw_stream

LONG = "x" * (3_900_000)
# of four bytes each in UTF-8
WIDE = "\U0001f4a5"


@pytest.fixture
def served():
    with serve_intake(Limits(max_actors=4096)) as (client, registry):
        yield client, registry


def failure(**texts: str) -> bytes:
    fields = {"exception_type": "ValueError", "message": "m", "traceback": "t"} | texts
    return rollout_pb2.StreamRolloutsRequest(failure=rollout_pb2.ActorFailure(**fields)).SerializeToString()


def rollout_with(spoil: Callable[[rollout_pb2.Rollout], object]) -> bytes:
    (message,) = RolloutEncoder().encode(make_rollout(1, actor_id="a"))
    request = rollout_pb2.StreamRolloutsRequest.FromString(message)
    request.ClearField("digest")
    spoil(request.rollout)
    return request.SerializeToString()


def check_answers(client):
    """Everything that is asked of the learner is answered, in messages that fit."""
    assert client.status().env_steps == 12
    update = next(client.watch_history())
    return client.actors(), update


@pytest.mark.parametrize("field", ["exception_type", "message", "traceback"])
def test_a_failure_is_cut_where_it_is_received(served, field):
    client, _ = served
    client.join(offer("a"))
    assert raw_stream(client.address, opening(), failure(**{field: LONG + "the end"})) is None
    wait_until(lambda: client.actors()[0].state is not ActorState.STREAMING, "the stream has ended")
    (actor,), update = check_answers(client)
    assert len(actor.last_error) < 2 * MAX_REASON_LENGTH
    told = next(event for event in update.events if event.text.startswith("failed"))
    assert len(told.detail) <= MAX_TRACEBACK_LENGTH
    assert field != "traceback" or told.detail.endswith("the end")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rollout: setattr(rollout.substeps[0].observation[0], "path", LONG),
        lambda rollout: setattr(rollout.substeps[0], "key", LONG),
        lambda rollout: setattr(rollout, "actor_id", LONG),
    ],
    ids=["path", "key", "name"],
)
def test_a_refusal_repeats_the_beginning_of_a_name_and_still_says_what_was_expected(served, spoil, caplog):
    client, _ = served
    client.join(offer("a"))
    error = raw_stream(client.address, opening(), rollout_with(spoil))
    assert isinstance(error, InvalidRolloutError)
    assert "as agreed at Join" in str(error) or "as this stream was opened" in str(error)
    (actor,), _ = check_answers(client)
    assert actor.state is ActorState.REFUSED
    assert len(actor.last_error) <= MAX_REASON_LENGTH
    assert all(len(record.getMessage()) < 2 * MAX_REASON_LENGTH for record in caplog.records)


def test_an_unknown_name_is_refused_in_a_short_message(served, caplog):
    client, _ = served
    error = raw_stream(client.address, opening(LONG))
    assert isinstance(error, UnknownActorError)
    assert "has not joined this learner" in str(error)
    assert len(str(error)) < MAX_REASON_LENGTH


def test_any_number_of_actors_with_the_longest_texts_are_listed(served):
    """12 MB of them: in pages, and in continued messages."""
    client, registry = served
    texts = {"message": WIDE * MAX_REASON_LENGTH, "traceback": WIDE * MAX_TRACEBACK_LENGTH}
    failed = ActorFailure(exception_type="ValueError", **texts)
    for number in range(1500):
        record = registry.join(offer(f"{number:0128}", process_nonce=number, software_version=WIDE * 128))
        registry.failed(record, failed)
    actors, update = check_answers(client)
    assert [actor.slot for actor in actors] == list(range(1500))
    assert [actor.slot for actor in update.actors] == list(range(1500))
    assert update.events


def test_an_old_client_gets_the_first_page_and_hears_where_the_next_begins(served):
    client, registry = served
    for number in range(1500):
        record = registry.join(offer(f"{number}", process_nonce=number))
        registry.failed(record, ActorFailure(exception_type="E", message=WIDE * MAX_REASON_LENGTH, traceback=""))
    with make_channel(client.address) as channel:
        page = learner_pb2_grpc.LearnerServiceStub(channel).ListActors(learner_pb2.ListActorsRequest())
    assert 0 < page.next_slot < 1500
    assert [actor.slot for actor in page.actors] == list(range(page.next_slot))
