"""Encodes and decodes evaluators' plans and reports. Makes all checks of a report that do not need the plan."""

import math
from typing import Final

from rollcast.services.errors import InvalidInputError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.joining.evaluation import EvaluationActions, EvaluationPlan, EvaluationReport, PlayedEpisodes
from rollcast.services.joining.failure_codec import failure_from_proto, failure_to_proto
from rollcast.services.limits.limits import MAX_ACTOR_ID_LENGTH, MAX_EVALUATION_EPISODES, MAX_EVALUATION_OPPONENTS
from rollcast.services.limits.texts import quoted, shortened
from rollcast.services.wire.same_fields import same_fields
from rollcast.v1 import rollout_pb2

_plan_fields: Final = same_fields(EvaluationPlan, but=("actions",))
_played_fields: Final = same_fields(PlayedEpisodes, but=("actions",))


def evaluation_plan_to_proto(plan: EvaluationPlan) -> rollout_pb2.EvaluationPlan:
    """Encodes an evaluator's plan.

    Args:
        plan: The plan.
    """
    return rollout_pb2.EvaluationPlan(
        **_plan_fields(plan),
        actions=plan.actions.value,  # type: ignore[arg-type]  # the stub's enum class exists for checkers only
    )


def evaluation_plan_from_proto(proto: rollout_pb2.EvaluationPlan) -> EvaluationPlan:
    """Decodes an evaluator's plan.

    Args:
        proto: The message.

    Raises:
        InvalidInputError: The number of episodes is out of range, or the kind of actions is unknown.
    """
    if not 1 <= proto.n_episodes <= MAX_EVALUATION_EPISODES:
        raise InvalidInputError(
            f"the learner asks for {proto.n_episodes} episodes with each policy; expected 1 to "
            f"{MAX_EVALUATION_EPISODES}; correct the learner's --eval-episodes",
            limit="max_evaluation_episodes",
        )
    return EvaluationPlan(**_plan_fields(proto), actions=_actions_from_proto(proto.actions, "the learner asks for"))


def evaluation_report_to_proto(report: EvaluationReport) -> rollout_pb2.ReportEvaluationRequest:
    """Encodes a report.

    Args:
        report: The report.
    """
    request = rollout_pb2.ReportEvaluationRequest(
        actor_id=report.actor_id, incarnation=report.incarnation, learner_nonce=report.learner_nonce
    )
    if isinstance(report.outcome, ActorFailure):
        request.failure.CopyFrom(failure_to_proto(report.outcome))
    else:
        request.evaluation.CopyFrom(
            rollout_pb2.Evaluation(
                **_played_fields(report.outcome),
                actions=report.outcome.actions.value,  # type: ignore[arg-type]  # as above
            )
        )
    return request


def evaluation_report_from_proto(proto: rollout_pb2.ReportEvaluationRequest) -> EvaluationReport:
    """Decodes a report.

    Args:
        proto: The message.

    Raises:
        InvalidInputError: The report is empty, has different numbers of lengths and returns, or has impossible numbers.
    """
    outcome: PlayedEpisodes | ActorFailure
    if proto.HasField("failure"):
        outcome = failure_from_proto(proto.failure)
    elif proto.HasField("evaluation"):
        outcome = _played_from_proto(proto.evaluation, proto.actor_id)
    else:
        raise InvalidInputError(
            f"the report of evaluator {quoted(proto.actor_id)} is empty; expected episodes or a failure; send one"
        )
    return EvaluationReport(
        actor_id=shortened(proto.actor_id, MAX_ACTOR_ID_LENGTH),
        incarnation=proto.incarnation,
        learner_nonce=proto.learner_nonce,
        outcome=outcome,
    )


def _played_from_proto(proto: rollout_pb2.Evaluation, actor_id: str) -> PlayedEpisodes:
    who = f"evaluator {quoted(actor_id)}"
    n_returns, n_lengths = len(proto.returns), len(proto.lengths)
    actions, counts = _actions_from_proto(proto.actions, f"{who} reports on"), tuple(proto.counts)
    if counts and (len(counts) > MAX_EVALUATION_OPPONENTS or min(counts) < 1 or sum(counts) != n_returns):
        raise InvalidInputError(
            f"{who} reports {n_returns} returns in parts of {list(counts[:MAX_EVALUATION_OPPONENTS])}; expected at "
            f"most {MAX_EVALUATION_OPPONENTS} parts of at least 1, and the same number of returns; correct them",
            limit="max_evaluation_opponents" if len(counts) > MAX_EVALUATION_OPPONENTS else "",
        )
    most = MAX_EVALUATION_EPISODES * max(len(counts), 1)
    if n_returns != n_lengths or n_returns > most:
        raise InvalidInputError(
            f"{who} reports {n_returns} returns and {n_lengths} lengths; expected the same number of both, at most "
            f"{most}; send one of each for every episode",
            limit="max_evaluation_episodes" if n_returns > most else "",
        )
    for episode, (episode_return, length) in enumerate(zip(proto.returns, proto.lengths, strict=True)):
        if not math.isfinite(episode_return):
            raise InvalidInputError(
                f"{who} reports the return {episode_return} for episode {episode}; expected a finite number; correct "
                "the environment's rewards"
            )
        if length < 1:
            raise InvalidInputError(
                f"{who} reports {length} steps for episode {episode}; expected at least 1; send its number of steps"
            )
    if not 0.0 <= proto.seconds < math.inf:  # NaN too
        raise InvalidInputError(
            f"{who} reports that its episodes took {proto.seconds} s; expected a finite number of seconds; correct it"
        )
    return PlayedEpisodes(
        policy_version=proto.policy_version,
        returns=tuple(proto.returns),
        lengths=tuple(proto.lengths),
        seconds=proto.seconds,
        actions=actions,
        counts=counts,
    )


def _actions_from_proto(number: int, who_does: str) -> EvaluationActions:
    try:
        return EvaluationActions(number)
    except ValueError:
        raise InvalidInputError(
            f"{who_does} episodes with actions of kind {number}; expected one of "
            f"{[kind.value for kind in EvaluationActions]}; install the same rollcast on both sides"
        ) from None
