"""Says which process takes an actor, where a run has several learners, or a learner has ingest processes."""

from typing import Final, Protocol

from rollcast.services.joining.join import JoinOffer


class ActorAssignment(Protocol):
    """The division of a run's actors among its learners, or a learner's ingest processes. Any thread may call."""

    @property
    def rank(self) -> int:
        """The number of this learner; its slots are rank, rank + n_ranks, rank + 2 * n_ranks, ..."""

    @property
    def n_ranks(self) -> int:
        """The number of learners."""

    def elsewhere(self, offer: JoinOffer, n_taken: int) -> str | None:
        """Returns the address of the learner or ingest process that takes an actor; None: this learner does itself.

        Args:
            offer: The actor's offer.
            n_taken: The actors that are here already.

        Raises:
            NotReadyError: Whoever takes it does not serve yet, or not at this moment.
        """

    def took(self, name: str) -> None:
        """Notes that an actor is here: from now on every learner of the run sends it here."""


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
