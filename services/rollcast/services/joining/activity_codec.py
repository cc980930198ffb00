"""Encodes and decodes actors' activity reports."""

import math
from typing import Final

from rollcast.services.errors import InvalidInputError
from rollcast.services.joining.activity import ActingState, ActorActivity
from rollcast.v1 import rollout_pb2

_STATES: Final = {state.value: state for state in ActingState}


def activity_to_proto(activity: ActorActivity) -> rollout_pb2.ActorActivity:
    """Encodes a report.

    Args:
        activity: The report.
    """
    return rollout_pb2.ActorActivity(
        state=activity.state.value,  # type: ignore[arg-type]  # the stub's enum class exists for checkers only
        seconds=activity.seconds,
        policy_version=activity.policy_version,
        policy_age_s=activity.policy_age_s,
        dropped_episodes=activity.dropped_episodes,
        cpu_s=activity.cpu_s,
        memory_bytes=activity.memory_bytes,
        answer_p50_s=activity.answer_p50_s,
        answer_p99_s=activity.answer_p99_s,
    )


def activity_from_proto(proto: rollout_pb2.ActorActivity, *, actor_id: str) -> ActorActivity | None:
    """Decodes and checks an actor's report.

    Args:
        proto: The report.
        actor_id: The actor's name, for the message of an error.

    Returns:
        The report; None if a later version of rollcast sent it, with unknown states.

    Raises:
        InvalidInputError: A time is negative, not finite or missing.
    """
    n_states = len(ActingState)
    if len(proto.seconds) < n_states:
        raise InvalidInputError(
            f"actor {actor_id!r} reports {len(proto.seconds)} times; expected {n_states}, one for each state; correct "
            "it"
        )
    state = _STATES.get(proto.state)
    if state is None or len(proto.seconds) > n_states:
        return None
    names = (f"of {state.name.lower()}" for state in ActingState)
    times = (
        *zip(names, proto.seconds, strict=True),
        ("of its policy", proto.policy_age_s),
        ("of processors", proto.cpu_s),
        ("of its answers", proto.answer_p50_s),
        ("of its answers", proto.answer_p99_s),
    )
    for what, seconds in times:
        if not 0.0 <= seconds < math.inf:  # NaN too
            raise InvalidInputError(
                f"actor {actor_id!r} reports {seconds} s {what}; expected a finite number of at least 0; correct it"
            )
    return ActorActivity(
        state=state,
        seconds=tuple(proto.seconds),
        policy_version=proto.policy_version,
        policy_age_s=proto.policy_age_s,
        dropped_episodes=proto.dropped_episodes,
        cpu_s=proto.cpu_s,
        memory_bytes=proto.memory_bytes,
        answer_p50_s=proto.answer_p50_s,
        answer_p99_s=proto.answer_p99_s,
    )
