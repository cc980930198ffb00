"""Floods of failures and refusals, and texts as long as a message may be: they cost a few lines, and are cut."""

from collections.abc import Callable

import pytest

from rollcast.learner.serving.evaluations import Evaluations
from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import InvalidRolloutError, UnknownActorError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.joining.evaluation import EvaluationPlan, EvaluationReport
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
    fields = {"exception_type": "ValueError", "message": "m", "traceback": "t" * 8000} | texts
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
def test_a_failure_is_cut_where_it_is_received(served, field, caplog):
    client, _ = served
    client.join(offer("a"))
    assert raw_stream(client.address, opening(), failure(**{field: LONG + "the end"})) is None
    wait_until(lambda: client.actors()[0].state is not ActorState.STREAMING, "the stream has ended")
    (actor,), update = check_answers(client)
    assert len(actor.last_error) < 2 * MAX_REASON_LENGTH
    told = next(event for event in update.events if event.text.startswith("failed"))
    assert len(told.detail) <= MAX_TRACEBACK_LENGTH
    assert field != "traceback" or told.detail.endswith("the end")
    assert all(len(record.getMessage()) < 2 * MAX_TRACEBACK_LENGTH for record in caplog.records)


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
    with make_channel(client.address) as channel:
        page = learner_pb2_grpc.LearnerServiceStub(channel).ListActors(learner_pb2.ListActorsRequest())
    assert 0 < page.next_slot < 1500, "an old client gets the first page, and hears where the next begins"
    assert [actor.slot for actor in page.actors] == list(range(page.next_slot))


N_TIMES = 200


def events_of(client: LearnerClient, text: str) -> int:
    return sum(event.text.startswith(text) for event in next(client.watch_history()).events)


def test_a_failure_ends_the_stream(served, caplog):
    client, _ = served
    client.join(offer("a"))
    assert raw_stream(client.address, opening(), *[failure()] * N_TIMES) is None
    wait_until(lambda: client.actors()[0].state is ActorState.FAILED, "the failure")
    assert events_of(client, "failed") == 1
    assert sum("actor a failed" in record.getMessage() for record in caplog.records) == 1


def test_failures_on_stream_after_stream_are_told_once_a_second(served, caplog):
    client, _ = served
    client.join(offer("a"))
    for _ in range(N_TIMES):
        assert raw_stream(client.address, opening(), failure()) is None
    assert 0 < events_of(client, "failed") < N_TIMES / 2
    assert sum("actor a failed" in record.getMessage() for record in caplog.records) < N_TIMES / 2


def test_refusals_are_told_once_a_second_and_all_counted(served, caplog):
    client, _ = served
    client.join(offer("a"))
    empty = rollout_pb2.StreamRolloutsRequest().SerializeToString()
    for _ in range(N_TIMES):
        assert isinstance(raw_stream(client.address, opening(), empty), InvalidRolloutError)
    assert 0 < events_of(client, "a message was refused") < N_TIMES / 2
    assert sum("refused a rollout" in record.getMessage() for record in caplog.records) < N_TIMES / 2


def test_an_evaluator_that_fails_again_and_again_is_told_once_a_second(caplog):
    notes = []
    evaluations = Evaluations(EvaluationPlan(n_episodes=1, seed=1), note=lambda *_args, **_kwargs: notes.append(1))
    evaluations.begin(5)
    name, incarnation = evaluations.join(offer("e"))
    failed = ActorFailure(exception_type="ValueError", message="m", traceback="t")
    for _ in range(N_TIMES):
        evaluations.report(EvaluationReport(actor_id=name, incarnation=incarnation, learner_nonce=5, outcome=failed))
    assert 0 < len(notes) < N_TIMES / 2
    assert 0 < sum("evaluator e failed" in record.getMessage() for record in caplog.records) < N_TIMES / 2
