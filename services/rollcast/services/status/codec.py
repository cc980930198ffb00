"""Encodes and decodes the status of a learner and its actors."""

from typing import Final

from rollcast.services.errors import InvalidInputError
from rollcast.services.joining.activity import ActingState
from rollcast.services.limits.refusals import Throttled
from rollcast.services.replay.codec import replay_status_from_proto, replay_status_to_proto
from rollcast.services.status.status import (
    ActorInfo,
    ActorState,
    ActStatus,
    EvaluationStatus,
    LearnerStatus,
    LearningFinding,
    Phase,
)
from rollcast.services.wire.same_fields import same_fields
from rollcast.v1 import learner_pb2

# The numbers of the enums and the names of the fields are the contract's; tests compare both with the descriptors.
_status_fields: Final = same_fields(
    LearnerStatus, but=("phase", "mean_return", "replay", "throttled", "evaluation", "findings", "acts")
)
_evaluation_fields: Final = same_fields(EvaluationStatus)
_act_fields: Final = same_fields(ActStatus)
_finding_fields: Final = same_fields(LearningFinding)
_throttled_fields: Final = same_fields(Throttled)
_actor_fields: Final = same_fields(ActorInfo, but=("state", "acting_state", "via"))


def status_to_proto(status: LearnerStatus) -> learner_pb2.LearnerStatus:
    """Encodes a learner's status.

    Args:
        status: The status.

    Returns:
        The message. `mean_return`, `replay`, `evaluation` and `acts` are absent if they are None.
    """
    proto = learner_pb2.LearnerStatus(**_status_fields(status))
    proto.phase = status.phase.value  # type: ignore[assignment]  # the stub's enum class exists for checkers only
    if status.mean_return is not None:
        proto.mean_return = status.mean_return
    if status.replay is not None:
        proto.replay.CopyFrom(replay_status_to_proto(status.replay))
    if status.evaluation is not None:
        proto.evaluation.CopyFrom(learner_pb2.EvaluationStatus(**_evaluation_fields(status.evaluation)))
    if status.acts is not None:
        proto.acts.CopyFrom(learner_pb2.ActStatus(**_act_fields(status.acts)))
    for met in status.throttled:
        proto.throttled.add(**_throttled_fields(met))
    for finding in status.findings:
        proto.findings.add(**_finding_fields(finding))
    return proto


def status_from_proto(proto: learner_pb2.LearnerStatus) -> LearnerStatus:
    """Decodes a learner's status.

    Args:
        proto: The message.

    Raises:
        InvalidInputError: The phase is unknown.
    """
    try:
        phase = Phase(proto.phase)
    except ValueError as error:
        raise InvalidInputError(
            f"the learner is in phase {proto.phase}; expected one of {[phase.value for phase in Phase]}; update "
            "rollcast here"
        ) from error
    return LearnerStatus(
        phase=phase,
        mean_return=proto.mean_return if proto.HasField("mean_return") else None,
        replay=replay_status_from_proto(proto.replay) if proto.HasField("replay") else None,
        evaluation=EvaluationStatus(**_evaluation_fields(proto.evaluation)) if proto.HasField("evaluation") else None,
        acts=ActStatus(**_act_fields(proto.acts)) if proto.HasField("acts") else None,
        throttled=tuple(Throttled(**_throttled_fields(met)) for met in proto.throttled),
        findings=tuple(LearningFinding(**_finding_fields(finding)) for finding in proto.findings),
        **_status_fields(proto),
    )


def actor_to_proto(actor: ActorInfo) -> learner_pb2.ActorInfo:
    """Encodes the state of an actor.

    Args:
        actor: The actor.
    """
    proto = learner_pb2.ActorInfo(**_actor_fields(actor), via=actor.via)
    proto.state = actor.state.value  # type: ignore[assignment]  # the stub's enum class exists for checkers only
    if actor.acting_state is not None:
        proto.acting_state = actor.acting_state.value  # type: ignore[assignment]  # likewise
    return proto


def actor_from_proto(proto: learner_pb2.ActorInfo) -> ActorInfo:
    """Decodes the state of an actor.

    Args:
        proto: The message.

    Raises:
        InvalidInputError: The state is unknown.
    """
    try:
        state = ActorState(proto.state)
    except ValueError as error:
        raise InvalidInputError(
            f"actor {proto.actor_id!r} is in state {proto.state}; expected one of "
            f"{[state.value for state in ActorState]}; update rollcast here"
        ) from error
    known = {acting.value: acting for acting in ActingState}
    # None if the actor has sent no report, or reports a state of a later version.
    acting_state = known.get(proto.acting_state)
    return ActorInfo(state=state, acting_state=acting_state, via=tuple(proto.via), **_actor_fields(proto))
