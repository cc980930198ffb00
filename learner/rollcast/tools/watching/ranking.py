"""Ranks actors, the least healthy first, and finds silent ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rollcast.services.joining.activity import ActingState
from rollcast.services.status.status import ActorInfo, ActorState

# An actor is silent after these seconds, and after this many times the silence of the quickest quarter of the others.
SILENT_S: Final = 10.0
_TIMES_THE_OTHERS: Final = 5.0
# Shares of acting are compared in steps of this size, so that similar actors keep their places.
_STEP: Final = 0.1

_GONE: Final = (ActorState.LOST, ActorState.FAILED, ActorState.REFUSED)
# States of waiting for the learner, in which an actor sends nothing without being silent.
_WAITING: Final = (ActingState.WAITING_FOR_CREDIT, ActingState.WAITING_FOR_POLICY)


def gone(actors: Sequence[ActorInfo]) -> list[ActorInfo]:
    """Returns the actors that have failed, were refused, or are lost; first those that have been gone the longest."""
    return sorted((actor for actor in actors if actor.state in _GONE), key=lambda actor: -actor.idle_s)


def silences(
    actors: Sequence[ActorInfo], unheard_s: Callable[[str], float | None] = lambda _: None
) -> dict[str, float]:
    """Returns the seconds of silence of each silent actor, by name, the longest silence first.

    A connected actor is silent if it has not reported its state for 10 s, because its process or the network hangs. An
    actor that does not wait for the learner is also silent 10 s after its last rollout. This time must be at least five
    times that of the quickest quarter of the others. Its environment is then slow or hangs. Long rollouts of all actors
    do not count as silence, unless no actor has sent a rollout for 10 s.

    Args:
        actors: The actors.
        unheard_s: Returns the seconds since an actor's last report of its state; None: there was none.
    """
    connected = [actor for actor in actors if actor.state is ActorState.STREAMING]
    busy = [actor for actor in connected if actor.acting_state not in _WAITING]
    quiet = [actor for actor in busy if actor.idle_s > SILENT_S]
    if len(quiet) < len(busy):
        # A quiet actor is never in the quickest quarter, because at least one other actor is not quiet.
        limit_s = _TIMES_THE_OTHERS * sorted(actor.idle_s for actor in busy)[(len(busy) - 1) // 4]
        quiet = [actor for actor in quiet if actor.idle_s > limit_s]
    found = {actor.actor_id: actor.idle_s for actor in quiet}
    for actor in connected:
        unheard = unheard_s(actor.actor_id)
        # An actor that has just reconnected has had no time to report.
        if unheard is not None and min(unheard, actor.idle_s) > SILENT_S:
            found[actor.actor_id] = max(unheard, found.get(actor.actor_id, 0.0))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def ranked(
    actors: Sequence[ActorInfo], acting_share: Callable[[str], float | None], silent_s: Mapping[str, float]
) -> list[ActorInfo]:
    """Returns the actors, the worst off first.

    First come actors that have failed, were refused, or are lost; then silent actors. The others follow by the share of
    the last minute in which they acted, in steps of a tenth, and by slot. Actors that have left come last.

    Args:
        actors: The actors.
        acting_share: Returns an actor's share of acting in the last minute, 0 to 1; None if it is not known.
        silent_s: The silent actors; see `silences`.
    """

    def key(actor: ActorInfo) -> tuple[int, float, int]:
        if actor.state in _GONE:
            # Failed and refused actors come before lost ones, which may reconnect by themselves.
            return (1 if actor.state is ActorState.LOST else 0), 0.0, actor.slot
        if actor.state is ActorState.LEFT:
            return 4, 0.0, actor.slot
        if actor.actor_id in silent_s:
            return 2, -silent_s[actor.actor_id], actor.slot
        share = acting_share(actor.actor_id)
        return 3, 1.0 + _STEP if share is None else _STEP * (share // _STEP), actor.slot

    return sorted(actors, key=key)
