"""The seam behind the intake: where accepted rollouts go."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from rollcast.learner.queueing.room import Turn
from rollcast.services.rollouts.rollouts import Rollout


class Reservations(Protocol):
    """Room for rollouts that can be reserved. Called from many threads."""

    def reserve(self, n_trajectories: int) -> bool:
        """Sets room aside for a coming rollout; returns False if there is none. Never waits."""

    def release(self, n_trajectories: int) -> None:
        """Gives a reservation back."""


class RolloutDestination(Reservations, Protocol):
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
