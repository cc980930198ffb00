"""Divides the actors of a run among its ranks."""

import logging
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Final

from rollcast.learner.ranks.group import Group
from rollcast.services.errors import NotReadyError, RankLostError
from rollcast.services.joining.join import ActorRole, JoinOffer

logger = logging.getLogger(__name__)


# An actor that was sent to a rank, and has not arrived after so long, is not counted there any more.
_ARRIVAL_S: Final = 30.0
_AGAIN: Final = "try again with backoff"


def part_rank(name: str, n_ranks: int) -> int:
    """Returns the rank that gets an actor of a checkpoint which another number of ranks has written."""
    return zlib.crc32(name.encode()) % n_ranks


class RankAssignment:
    """The assignment of actors over all ranks: a `serving.assignment.ActorAssignment`. Any thread may call.

    A new actor is sent to the rank with the fewest actors. That rank keeps the actor's history, so the actor returns to
    it after every reconnect. An actor that no rank knows, because no checkpoint has it, is assigned like a new one.
    Evaluators are assigned to rank 0. Actors are sent only to the addresses of `serve_at`.

    Args:
        group: Notes which rank has which actor.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rank, self.n_ranks = group.rank, group.n_ranks
        # The address of each rank for actors; empty: some do not serve yet.
        self._addresses: Sequence[str] = ()
        self._lock = threading.Lock()  # guards the actors of each rank: those it has told, and those sent there since
        self._told = [0] * group.n_ranks
        self._sent = [0] * group.n_ranks
        self._sent_at = 0.0

    def serve_at(self, addresses: Sequence[str]) -> None:
        """Notes where actors reach each rank, once all of them serve."""
        self._addresses = tuple(addresses)

    def note_loads(self, n_actors: Sequence[int]) -> None:
        """Notes how many actors each rank has now."""
        with self._lock:
            if time.monotonic() - self._sent_at > _ARRIVAL_S:
                self._sent = [0] * self.n_ranks
            for rank, n in enumerate(n_actors):
                # Those that were sent are counted until they have arrived.
                self._sent[rank] = max(0, self._sent[rank] - max(0, n - self._told[rank]))
                self._told[rank] = n

    def took(self, name: str) -> None:
        """Notes that an actor is here; see `ActorAssignment.took`."""
        try:
            self._group.note(f"home/{name}", str(self.rank))
        except RankLostError as error:
            # The run ends: the trainer meets the same.
            logger.debug("the other ranks were not told that %s is here: %s", name, error)

    def elsewhere(self, offer: JoinOffer, n_taken: int) -> str | None:
        """Returns the address of the rank that takes an actor; None: this one does.

        Raises:
            NotReadyError: That rank does not serve yet, or another rank that may know the actor does not.
        """
        try:
            rank = self._rank_of(offer, n_taken)
        except RankLostError as error:
            logger.debug("no rank says which one takes %s: %s", offer.actor_id, error)
            return None
        if rank == self.rank:
            return None
        if not self._addresses:
            with self._lock:
                self._sent[rank] = max(0, self._sent[rank] - 1)
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
            # It was here before these ranks were started. A rank notes whom it knows before it serves.
            raise NotReadyError(f"ranks of this run, one of which may know this actor, are starting; {_AGAIN}")
        with self._lock:
            loads = [told + sent for told, sent in zip(self._told, self._sent, strict=True)]
            loads[self.rank] = max(loads[self.rank], n_taken)
            # Of ranks with as few, this one.
            rank = min(range(self.n_ranks), key=lambda other: (loads[other], other != self.rank))
            # Those that stay here, too: several may ask at once.
            self._sent[rank] += 1
            self._sent_at = time.monotonic()
        return rank
