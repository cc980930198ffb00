"""Floods of failures and refusals from one client: they cost the log and the history of the learner a few lines."""

import pytest

from rollcast.learner.serving.evaluations import Evaluations
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import InvalidRolloutError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.joining.evaluation import EvaluationPlan, EvaluationReport
from rollcast.services.limits.limits import Limits
from rollcast.services.status.status import ActorState
from rollcast.v1 import rollout_pb2
from tests.attacks.served_intake import serve_intake
from tests.integration.learner_fakes import offer
from tests.processes import wait_until
from tests.unit.services.raw_streams import opening, raw_stream

N_TIMES = 200


@pytest.fixture
def served():
    with serve_intake(Limits()) as (client, registry):
        client.join(offer("a"))
        yield client, registry


def failure() -> bytes:
    failed = rollout_pb2.ActorFailure(exception_type="ValueError", message="m", traceback="t" * 8000)
    return rollout_pb2.StreamRolloutsRequest(failure=failed).SerializeToString()


def events_of(client: LearnerClient, text: str) -> int:
    return sum(event.text.startswith(text) for event in next(client.watch_history()).events)


def test_a_failure_ends_the_stream(served, caplog):
    client, _ = served
    assert raw_stream(client.address, opening(), *[failure()] * N_TIMES) is None
    wait_until(lambda: client.actors()[0].state is ActorState.FAILED, "the failure")
    assert events_of(client, "failed") == 1
    assert sum("actor a failed" in record.getMessage() for record in caplog.records) == 1


def test_failures_on_stream_after_stream_are_told_once_a_second(served, caplog):
    client, _ = served
    for _ in range(N_TIMES):
        assert raw_stream(client.address, opening(), failure()) is None
    assert 0 < events_of(client, "failed") < N_TIMES / 2
    assert sum("actor a failed" in record.getMessage() for record in caplog.records) < N_TIMES / 2


def test_refusals_are_told_once_a_second_and_all_counted(served, caplog):
    client, _ = served
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
