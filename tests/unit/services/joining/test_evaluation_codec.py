import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.services.errors import InvalidInputError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.joining.evaluation import EvaluationActions, EvaluationPlan, EvaluationReport, PlayedEpisodes
from rollcast.services.joining.evaluation_codec import (
    evaluation_plan_from_proto,
    evaluation_plan_to_proto,
    evaluation_report_from_proto,
    evaluation_report_to_proto,
)
from rollcast.services.joining.failure_codec import failure_from_proto
from rollcast.services.limits.limits import MAX_ACTOR_ID_LENGTH, MAX_EVALUATION_EPISODES, MAX_TRACEBACK_LENGTH
from rollcast.services.limits.texts import shortened
from rollcast.v1 import rollout_pb2

EPISODES = st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 2**32 - 1)), min_size=1)


def report(outcome: PlayedEpisodes | ActorFailure) -> EvaluationReport:
    return EvaluationReport(actor_id="e", incarnation=2, learner_nonce=2**64 - 1, outcome=outcome)


@given(EPISODES, st.integers(0, 2**62), st.floats(0, 1e9), st.sampled_from(EvaluationActions))
def test_episodes_come_back_as_they_were(
    episodes: list[tuple[float, int]], version: int, seconds: float, actions: EvaluationActions
):
    returns, lengths = zip(*episodes, strict=True)
    counts = (len(returns),) if len(returns) < 2 else (1, len(returns) - 1)
    played = report(
        PlayedEpisodes(
            policy_version=version,
            returns=returns,
            lengths=lengths,
            seconds=seconds,
            actions=actions,
            counts=counts,
        )
    )
    assert evaluation_report_from_proto(evaluation_report_to_proto(played)) == played


def test_failure_comes_back_as_it_was():
    failed = report(ActorFailure(exception_type="ValueError", message="m", traceback="t", env_seed=3))
    assert evaluation_report_from_proto(evaluation_report_to_proto(failed)) == failed


def test_a_long_failure_and_name_are_cut():
    proto = rollout_pb2.ActorFailure(exception_type="E" * 10**6, message="m" * 10**6, traceback="t" * 10**6 + "end")
    sent = evaluation_report_to_proto(report(failure_from_proto(proto)))
    assert sent.ByteSize() < 2 * MAX_TRACEBACK_LENGTH
    assert sent.failure.traceback.endswith("end")
    sent.actor_id = "e" * 10**6
    assert evaluation_report_from_proto(sent).actor_id == shortened(sent.actor_id, MAX_ACTOR_ID_LENGTH)


@pytest.mark.parametrize("actions", EvaluationActions)
def test_plan_comes_back_as_it_was(actions: EvaluationActions):
    plan = EvaluationPlan(n_episodes=MAX_EVALUATION_EPISODES, seed=2**32 - 1, actions=actions, opponents=True)
    assert evaluation_plan_from_proto(evaluation_plan_to_proto(plan)) == plan


def test_rejects_plan_with_actions_of_a_newer_learner():
    with pytest.raises(InvalidInputError, match=r"actions of kind 9; expected one of \[0, 1, 2\]"):
        evaluation_plan_from_proto(rollout_pb2.EvaluationPlan(n_episodes=1, actions=9))


@pytest.mark.parametrize("n_episodes", [0, MAX_EVALUATION_EPISODES + 1])
def test_rejects_plan_with_impossible_number_of_episodes(n_episodes: int):
    with pytest.raises(InvalidInputError, match=f"asks for {n_episodes} episodes .* expected 1 to 10000"):
        evaluation_plan_from_proto(rollout_pb2.EvaluationPlan(n_episodes=n_episodes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"returns": [math.nan, 1.0]}, "the return nan for episode 0; expected a finite number"),
        ({"returns": [1.0, math.inf]}, "the return inf for episode 1; expected a finite number"),
        ({"lengths": [3, 0]}, "0 steps for episode 1; expected at least 1"),
        ({"lengths": [3]}, "2 returns and 1 lengths; expected the same number of both"),
        ({"returns": [], "lengths": [3]}, "0 returns and 1 lengths; expected the same number of both, at most 10000"),
        ({"returns": [0.0] * 10_001, "lengths": [1] * 10_001}, "10001 returns and 10001 lengths"),
        ({"returns": [0.0] * 20_001, "lengths": [1] * 20_001, "counts": [1, 20_000]}, "of both, at most 20000"),
        ({"counts": [1, 2]}, r"2 returns in parts of \[1, 2\]; expected at most 32 parts of at least 1"),
        ({"counts": [2, 0]}, r"in parts of \[2, 0\]; expected at most 32 parts of at least 1"),
        ({"counts": [1] * 1000}, "expected at most 32 parts of at least 1"),
        ({"actions": 3}, "reports on episodes with actions of kind 3; expected one of"),
        ({"seconds": -1.0}, "its episodes took -1.0 s; expected a finite number of seconds"),
        ({"seconds": math.nan}, "its episodes took nan s"),
    ],
)
def test_rejects_episodes_that_cannot_be(changes: dict[str, object], message: str):
    evaluation = rollout_pb2.Evaluation(
        **({"policy_version": 1, "returns": [1.0, 2.0], "lengths": [3, 4], "seconds": 1.0} | changes)
    )
    with pytest.raises(InvalidInputError, match=message):
        evaluation_report_from_proto(rollout_pb2.ReportEvaluationRequest(actor_id="e", evaluation=evaluation))


def test_rejects_empty_report():
    with pytest.raises(InvalidInputError, match="the report of evaluator 'e' is empty; expected episodes or a failure"):
        evaluation_report_from_proto(rollout_pb2.ReportEvaluationRequest(actor_id="e"))
