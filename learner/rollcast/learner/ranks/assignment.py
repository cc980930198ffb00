"""Divides the actors of a run among its ranks."""

import threading
import time
import zlib
from collections.abc import Sequence
from typing import Final

from rollcast.learner.ranks.group import Group
from rollcast.learner.serving.assignment import ActorLoad
from rollcast.services.errors import NotReadyError
from rollcast.services.joining.join import ActorRole, JoinOffer

_AGAIN: Final = "try again with backoff"


def part_rank(name: str, n_ranks: int) -> int:
    """Returns the rank that gets an actor from a checkpoint of a run with another number of ranks."""
    return zlib.crc32(name.encode()) % n_ranks


class RankAssignment:
    """The assignment of actors over all ranks: a `serving.assignment.ActorAssignment`. Thread-safe.

    A new actor is sent to the rank with the fewest actors. That rank keeps the actor's history, so the actor returns to
    it after every reconnect. An actor that is in no checkpoint is assigned like a new actor. Evaluators are assigned to
    rank 0. Actors are sent only to the addresses of `serve_at`.

    Args:
        group: Stores which rank has which actor.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rank, self.n_ranks = group.rank, group.n_ranks
        # The address of each rank for actors; empty: some do not serve yet.
        self._addresses: Sequence[str] = ()
        self._lock = threading.Lock()  # guards the actors of each rank: reported and redirected ones
        self._loads = [ActorLoad() for _ in range(group.n_ranks)]

    def serve_at(self, addresses: Sequence[str]) -> None:
        """Stores the addresses of all ranks for actors, once all ranks serve."""
        self._addresses = tuple(addresses)

    def note_loads(self, n_actors: Sequence[int]) -> None:
        """Stores the present number of actors at each rank."""
        with self._lock:
            for load, n in zip(self._loads, n_actors, strict=True):
                load.report(n)

    def took(self, name: str) -> None:
        """Records that this rank has an actor; see `ActorAssignment.took`."""
        self._group.note(f"home/{name}", str(self.rank))

    def elsewhere(self, offer: JoinOffer, n_taken: int) -> str | None:
        """Returns the address of the rank that takes an actor; None: this rank takes it.

        Raises:
            NotReadyError: That rank, or another rank that may know the actor, does not serve yet.
            RankLostError: The ranks have lost each other. Another rank may have the actor's last rollouts in its log.
        """
        rank = self._rank_of(offer, n_taken)
        if rank == self.rank:
            return None
        if not self._addresses:
            with self._lock:
                self._loads[rank].take_back()
            raise NotReadyError(f"rank {rank} of this run, which takes this actor, is starting; {_AGAIN}")
        return self._addresses[rank]

    def _rank_of(self, offer: JoinOffer, n_taken: int) -> int:
        if offer.role is ActorRole.EVALUATE:
            return 0
        known = self._group.noted(f"home/{offer.actor_id}") if offer.actor_id else None
        ranks = [str(rank) for rank in range(self.n_ranks)]
        if known in ranks:
            return ranks.index(known)
        if offer.incarnation and not self._addresses:
            # The actor was here before these ranks started. A rank notes its known actors before it serves.
            raise NotReadyError(f"a rank of this run that may know this actor is starting; {_AGAIN}")
        with self._lock:
            now = time.monotonic()
            loads = [load.count(now) for load in self._loads]
            loads[self.rank] = max(loads[self.rank], n_taken)
            # Of ranks with equally few actors, prefer this one.
            rank = min(range(self.n_ranks), key=lambda other: (loads[other], other != self.rank))
            # Also count actors that stay here, because several may ask at once.
            self._loads[rank].send(now)
        return rank
