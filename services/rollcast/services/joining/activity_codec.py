"""Encodes an actor's time by state as protobuf, and back; bounds how often an actor may send it."""

import math
import time
from collections.abc import Callable
from typing import Final

from rollcast.services.errors import InvalidInputError, LimitExceededError
from rollcast.services.joining.activity import ActingState, ActorActivity
from rollcast.services.limits.limits import ACTIVITIES_AHEAD, MAX_ACTIVITY_RATE
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
    )


def activity_from_proto(proto: rollout_pb2.ActorActivity, *, actor_id: str) -> ActorActivity | None:
    """Decodes and checks an actor's report.

    Args:
        proto: The report.
        actor_id: The actor's name, for the message of an error.

    Returns:
        The report; None if it is of a later version of rollcast, with states that are unknown here.

    Raises:
        InvalidInputError: A time is negative or not finite, or one is missing.
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
    times = (*zip(names, proto.seconds, strict=True), ("of its policy", proto.policy_age_s))
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
    )


class ActivityRate:
    """The reports that one stream may still send: a limit, which no actor that does as it was asked ever meets.

    Reports may come late and together, for the learner reads nothing while it waits for room: the number over the
    stream's whole time counts.

    Args:
        interval_s: The interval that the learner has asked for; 0: it wants no reports.
        actor_id: The actor's name, for the message of the error.
        clock: Returns monotonic seconds; replaced in tests.
    """

    def __init__(self, interval_s: float, *, actor_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._actor_id = actor_id
        self._clock = clock
        self._began = clock()
        self._n_reports = 0

    def count(self) -> bool:
        """Counts a report.

        Returns:
            False if the learner has asked for none: it is to be ignored.

        Raises:
            LimitExceededError: There were too many.
        """
        self._n_reports += 1
        open_s = self._clock() - self._began
        asked = open_s / self._interval_s if self._interval_s else 0.0
        if self._n_reports > ACTIVITIES_AHEAD + MAX_ACTIVITY_RATE * asked:
            raise LimitExceededError(
                f"actor {self._actor_id!r} has reported its time {self._n_reports} times in {open_s:.1f} s; expected "
                f"at most {ACTIVITIES_AHEAD} more than twice as often as every {self._interval_s:g} s; send fewer",
                limit="max_activity_rate",
            )
        return bool(self._interval_s)
