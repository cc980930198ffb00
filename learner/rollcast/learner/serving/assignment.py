"""Assigns actors to the learners of a run, or to the ingest processes of a learner."""

from collections import deque
from typing import Final, Protocol

from rollcast.services.joining.join import JoinOffer

# The seconds after which a redirected actor that has not arrived no longer counts.
_ARRIVAL_S: Final = 30.0


class ActorAssignment(Protocol):
    """Divides a run's actors among its learners, or among a learner's ingest processes. Thread-safe."""

    @property
    def rank(self) -> int:
        """The number of this learner; its slots are rank, rank + n_ranks, rank + 2 * n_ranks, ..."""

    @property
    def n_ranks(self) -> int:
        """The number of learners."""

    def elsewhere(self, offer: JoinOffer, n_taken: int) -> str | None:
        """Returns the address of the process that takes an actor; None: this learner takes it.

        Args:
            offer: The actor's offer.
            n_taken: The number of actors that this learner has already.

        Raises:
            NotReadyError: The process that takes it does not serve at this moment.
            RankLostError: The learners have lost each other, so the run ends.
        """

    def took(self, name: str) -> None:
        """Records that this learner has an actor. From now on, every learner of the run sends the actor here.

        Raises:
            RankLostError: The learners have lost each other, so the run ends.
        """


class OneLearner:
    """The assignment of a run with one learner, which takes every actor."""

    rank = 0
    n_ranks = 1

    def elsewhere(self, offer: JoinOffer, n_taken: int) -> str | None:
        """Returns None."""
        del offer, n_taken
        return None

    def took(self, name: str) -> None:
        """Does nothing."""


ONE_LEARNER: Final = OneLearner()


class ActorLoad:
    """Counts the actors of a process: reported actors, and redirected actors until they arrive. Not thread-safe."""

    def __init__(self) -> None:
        self._n_reported = 0
        # The times of redirects whose actors have not arrived.
        self._sent_at: deque[float] = deque()

    def report(self, n_actors: int) -> None:
        """Notes the present number of actors; each one more than before has arrived."""
        for _ in range(min(n_actors - self._n_reported, len(self._sent_at))):
            self._sent_at.popleft()
        self._n_reported = n_actors

    def send(self, now: float) -> None:
        """Notes that an actor is redirected to the process, at a time of `time.monotonic`."""
        self._sent_at.append(now)

    def take_back(self) -> None:
        """Notes that the last redirect was not sent."""
        if self._sent_at:
            self._sent_at.pop()

    def count(self, now: float) -> int:
        """Returns the number of actors at a time of `time.monotonic`."""
        while self._sent_at and now - self._sent_at[0] > _ARRIVAL_S:
            self._sent_at.popleft()
        return self._n_reported + len(self._sent_at)
