"""Ranks actors, the least healthy first, and finds silent ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rollcast.services.joining.activity import ActingState
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


def silences(
    actors: Sequence[ActorInfo], unheard_s: Callable[[str], float | None] = lambda _: None
) -> dict[str, float]:
    """Returns for how many seconds connected actors have been silent, the longest silent first, by their names.

    An actor is silent if it has not reported what it does for 10 s: its process or the network hangs. It is also silent
    if it does not wait for the learner, but has sent no rollout for 10 s and for five times as long as the quickest
    quarter of the others: its environment is slow or hangs. If all rollouts take long, no actor is silent for that; if
    all have sent none for 10 s, all of them are.

    Args:
        actors: The actors.
        unheard_s: Returns the seconds since an actor last reported what it does; None: it never has.
    """
    connected = [actor for actor in actors if actor.state is ActorState.STREAMING]
    busy = [actor for actor in connected if actor.acting_state not in _WAITING]
    quiet = [actor for actor in busy if actor.idle_s > SILENT_S]
    if len(quiet) < len(busy):
        # The actor itself is not in its quarter: there is a quicker one that is not quiet.
        limit_s = _TIMES_THE_OTHERS * sorted(actor.idle_s for actor in busy)[(len(busy) - 1) // 4]
        quiet = [actor for actor in quiet if actor.idle_s > limit_s]
    found = {actor.actor_id: actor.idle_s for actor in quiet}
    for actor in connected:
        unheard = unheard_s(actor.actor_id)
        # One that has just come back has not had the time to report.
        if unheard is not None and min(unheard, actor.idle_s) > SILENT_S:
            found[actor.actor_id] = max(unheard, found.get(actor.actor_id, 0.0))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def ranked(
    actors: Sequence[ActorInfo], acting_share: Callable[[str], float | None], silent_s: Mapping[str, float]
) -> list[ActorInfo]:
    """Returns the actors, the worst off first.

    First come those that have failed, were refused, or are lost; then the silent ones; then the others by the share of
    the last minute in which they acted, in steps of a tenth, and by slot; at last those that have left.

    Args:
        actors: The actors.
        acting_share: Returns an actor's share of acting in the last minute, 0 to 1; None if it is not known.
        silent_s: The silent actors; see `silences`.
    """

    def key(actor: ActorInfo) -> tuple[int, float, int]:
        if actor.state in _GONE:
            # A reason to look at it is worth more than a loss, from which an actor comes back by itself.
            return (1 if actor.state is ActorState.LOST else 0), 0.0, actor.slot
        if actor.state is ActorState.LEFT:
            return 4, 0.0, actor.slot
        if actor.actor_id in silent_s:
            return 2, -silent_s[actor.actor_id], actor.slot
        share = acting_share(actor.actor_id)
        return 3, 1.0 + _STEP if share is None else _STEP * (share // _STEP), actor.slot

    return sorted(actors, key=key)
