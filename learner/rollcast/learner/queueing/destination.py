"""The interface between the intake and the destination of accepted rollouts."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from rollcast.learner.queueing.room import Turn
from rollcast.services.rollouts.rollouts import Rollout


class Reservations(Protocol):
    """Room for rollouts, which callers can reserve in advance. Called from many threads."""

    def reserve(self, n_trajectories: int) -> bool:
        """Reserves room for a coming rollout; returns False if no room is left. Never waits."""

    def release(self, n_trajectories: int) -> None:
        """Cancels a reservation."""


class RolloutDestination(Reservations, Protocol):
    """Takes accepted rollouts: a `RolloutQueue`, or a replay buffer. Called from many threads."""

    def put(self, rollout: Rollout, *, is_active: Callable[[], bool], n_reserved: int = 0) -> bool:
        """Takes a rollout, and waits for room. This back-pressure reaches the actors.

        Args:
            rollout: The rollout.
            is_active: Called at least once a second during the wait; the wait ends once it returns False.
            n_reserved: The trajectories reserved for this rollout, at least its own number; 0: none.

        Returns:
            False if the rollout was not taken, because the destination was closed or `is_active` returned False.
        """

    def close(self) -> None:
        """Refuses further rollouts, and ends the waits in `put`."""


@runtime_checkable
class QueueingDestination(RolloutDestination, Protocol):
    """A destination in which waiting rollouts need no thread: a `RolloutQueue`. Called from many threads."""

    def offer(self, rollout: Rollout, *, decided: Callable[[], None], n_reserved: int = 0) -> Turn:
        """Takes a rollout, or registers it as waiting; see `RolloutQueue.offer`."""

    def withdraw(self, turn: Turn) -> None:
        """Ends the wait of a rollout; see `RolloutQueue.withdraw`."""
