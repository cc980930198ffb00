"""Ranks actors by who is worst off, and finds those that are silent."""

from collections.abc import Callable, Sequence
from typing import Final

from rollcast.services.rollouts.activity import ActingState
from rollcast.services.status.status import ActorInfo, ActorState

# An actor is silent after so many seconds, and after so many times what the quickest quarter of the others takes.
SILENT_S: Final = 10.0
_TIMES_THE_OTHERS: Final = 5.0
# Shares of acting are compared in steps of this size, so that actors that are alike keep their places.
_STEP: Final = 0.1

_GONE: Final = (ActorState.LOST, ActorState.FAILED, ActorState.REFUSED)
# Actors that wait for the learner: it is not their fault that they send nothing.
_WAITING: Final = (ActingState.WAITING_FOR_CREDIT, ActingState.WAITING_FOR_POLICY)


def gone(actors: Sequence[ActorInfo]) -> list[ActorInfo]:
    """Returns the actors that have failed, were refused, or are lost, the longest gone first."""
    return sorted((actor for actor in actors if actor.state in _GONE), key=lambda actor: -actor.idle_s)


def silent(actors: Sequence[ActorInfo]) -> list[ActorInfo]:
    """Returns the connected actors that say nothing though they do not wait for the learner, the longest silent first.

    The limit is 10 s, and five times what the quickest quarter of the others takes: if all rollouts take long, no actor
    is silent. If all are silent for 10 s, all of them are returned.
    """
    quiet = [
        actor
        for actor in actors
        if actor.state is ActorState.STREAMING and actor.idle_s > SILENT_S and actor.acting_state not in _WAITING
    ]
    if not quiet:
        return []
    times_s = sorted(actor.idle_s for actor in actors if actor.state is ActorState.STREAMING)
    if len(quiet) < len(times_s):
        # The actor itself is not in its quarter: there is a quicker one that is not quiet.
        limit_s = _TIMES_THE_OTHERS * times_s[(len(times_s) - 1) // 4]
        quiet = [actor for actor in quiet if actor.idle_s > limit_s]
    return sorted(quiet, key=lambda actor: -actor.idle_s)


def ranked(actors: Sequence[ActorInfo], acting_share: Callable[[str], float | None]) -> list[ActorInfo]:
    """Returns the actors, the worst off first.

    First come those that have failed, were refused, or are lost; then the silent ones; then the others by the share of
    the last minute in which they acted, in steps of a tenth, and by slot; at last those that have left.

    Args:
        actors: The actors.
        acting_share: Returns an actor's share of acting in the last minute, 0 to 1; None if it is not known.
    """
    silent_ids = {actor.actor_id for actor in silent(actors)}

    def key(actor: ActorInfo) -> tuple[int, float, int]:
        if actor.state in _GONE:
            # A reason to look at it is worth more than a loss, from which an actor comes back by itself.
            return (1 if actor.state is ActorState.LOST else 0), 0.0, actor.slot
        if actor.state is ActorState.LEFT:
            return 4, 0.0, actor.slot
        if actor.actor_id in silent_ids:
            return 2, -actor.idle_s, actor.slot
        share = acting_share(actor.actor_id)
        return 3, 1.0 + _STEP if share is None else _STEP * (share // _STEP), actor.slot

    return sorted(actors, key=key)
