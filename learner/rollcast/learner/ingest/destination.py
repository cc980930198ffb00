"""The seams behind the intake: where accepted rollouts go, and the log they are written to before."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from rollcast.learner.ingest.credits import Room
from rollcast.learner.ingest.records import ActorRecord
from rollcast.learner.ingest.turns import Turn
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.rollouts import Rollout


class RolloutDestination(Room, Protocol):
    """Takes accepted rollouts: a `RolloutQueue`, or a replay buffer. Called from many threads."""

    def put(self, rollout: Rollout, *, is_active: Callable[[], bool], n_reserved: int = 0) -> bool:
        """Takes a rollout, and waits while there is no room: this is the back-pressure that reaches the actors.

        Args:
            rollout: The rollout.
            is_active: Called at least every second during the wait; the wait ends once it returns False.
            n_reserved: The trajectories that `reserve` set aside for this rollout, at least its own; 0 if none.

        Returns:
            False if the rollout was not taken, because this was closed or `is_active` returned False.
        """

    def close(self) -> None:
        """Refuses every further rollout, and ends the waits in `put`."""


@runtime_checkable
class QueueingDestination(RolloutDestination, Protocol):
    """A destination in which rollouts wait for room without a thread: a `RolloutQueue`. Called from many threads."""

    def offer(self, rollout: Rollout, *, decided: Callable[[], None], n_reserved: int = 0) -> Turn:
        """Takes a rollout, or lets it wait for its turn; see `RolloutQueue.offer`."""

    def withdraw(self, turn: Turn) -> None:
        """Ends the wait of a rollout; see `RolloutQueue.withdraw`."""


class RolloutLog(Protocol):
    """A log on the disk, which keeps rollouts before they are acknowledged."""

    def write(
        self, rollout: Rollout, record: ActorRecord, encoder: RolloutEncoder, *, is_active: Callable[[], bool]
    ) -> bool:
        """Writes a rollout, and waits until it is on the disk.

        Args:
            rollout: The rollout.
            record: Its actor.
            encoder: The encoder of its stream.
            is_active: Called now and then during the wait; the wait ends once it returns False.

        Returns:
            False if the rollout must not be acknowledged, because the log was closed or `is_active` returned False.

        Raises:
            NotReadyError: The disk is full, or has failed.
        """

    def discard(self, rollout: Rollout) -> None:
        """Takes back a rollout that was written and will not be acknowledged."""
