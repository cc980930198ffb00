"""Summarises the relays between actors and their learner: the number and the state of each relay's actors."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from rollcast.services.status.status import ActorInfo, ActorState
from rollcast.tools.watching.ranking import gone

# Relays are compared by the share of silent or gone actors, in this many steps, so that similar ones keep their places.
_STEPS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayActors:
    """The actors that come through one relay, without those that have left.

    Attributes:
        relay_id: The relay's name; empty: the actors are connected to the learner itself.
        n_actors: The number of actors, at least 1.
        n_silent: The number of silent actors; see `ranking.silences`.
        n_gone: The number of actors that have failed, were refused, or are lost.
        env_steps_per_second: The sum of the steps per second of connected actors.
    """

    relay_id: str
    n_actors: int
    n_silent: int = 0
    n_gone: int = 0
    env_steps_per_second: float = 0.0

    @property
    def is_gone(self) -> bool:
        """True if every actor is gone: the relay or its network is lost."""
        return self.n_gone == self.n_actors

    @property
    def has_no_worker(self) -> bool:
        """True if every actor is silent or gone."""
        return self.n_silent + self.n_gone == self.n_actors


def relays(actors: Sequence[ActorInfo], silent_ids: Collection[str]) -> tuple[RelayActors, ...]:
    """Summarises actors by the relays that they connect through.

    An actor behind several relays in a row counts for each of them.

    Args:
        actors: The actors.
        silent_ids: The names of the silent actors.

    Returns:
        The relays, the worst off first. Relays that have lost all actors come first. The others follow by the share of
        actors that are silent or gone, in steps of a tenth, and by name. The last entry is that of actors without a
        relay, if there are any. Empty if no actor has a relay.
    """
    expected = [actor for actor in actors if actor.state is not ActorState.LEFT]
    if not any(actor.via for actor in expected):
        return ()
    gone_ids = {actor.actor_id for actor in gone(expected)}
    found: dict[str, list[ActorInfo]] = {}
    for actor in expected:
        for relay_id in dict.fromkeys(actor.via or ("",)):
            found.setdefault(relay_id, []).append(actor)
    summed = [
        RelayActors(
            relay_id=relay_id,
            n_actors=len(behind),
            n_silent=sum(actor.actor_id in silent_ids for actor in behind),
            n_gone=sum(actor.actor_id in gone_ids for actor in behind),
            env_steps_per_second=sum(
                actor.env_steps_per_second for actor in behind if actor.state is ActorState.STREAMING
            ),
        )
        for relay_id, behind in found.items()
    ]
    return tuple(sorted(summed, key=_rank))


def _rank(relay: RelayActors) -> tuple[bool, bool, int, str]:
    # One silent actor of a thousand counts as a step, too.
    steps = -(-_STEPS * (relay.n_silent + relay.n_gone) // relay.n_actors)
    return not relay.relay_id, not relay.is_gone, -steps, relay.relay_id
