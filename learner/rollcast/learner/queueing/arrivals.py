"""Decides the order in which the trainer gets rollouts: recovered ones first, then those of the queue."""

import sys
from typing import Protocol

from rollcast.learner.queueing.queue import RolloutQueue, RolloutSlice
from rollcast.learner.queueing.slot_order import SlotOrder


class Recovered(Protocol):
    """Rollouts that a killed learner had acknowledged and not learnt from."""

    def take(self, max_trajectories: int) -> RolloutSlice | None:
        """Returns the next trajectories, all of one rollout; None after the last of them."""


class Arrivals:
    """The rollouts that wait for the trainer: first the recovered ones, then the queue. Used by one thread at a time.

    Args:
        queue: The rollouts that have come, the oldest first.
        order: A fixed order in which to hand rollouts out; None for the order in which they come.
        durable: The rollouts of a killed learner; None if none were recovered.
    """

    def __init__(
        self, queue: RolloutQueue, *, order: SlotOrder | None = None, durable: Recovered | None = None
    ) -> None:
        self._queue = queue
        self._order = order
        self._durable = durable

    def get(
        self, max_trajectories: int, timeout_s: float, *, enough: int = 1, keep_room: bool = False
    ) -> RolloutSlice | None:
        """Takes the next trajectories, all of one rollout.

        Args:
            max_trajectories: The most trajectories to take.
            timeout_s: The seconds to wait for a rollout.
            enough: See `RolloutQueue.get`.
            keep_room: Likewise. Not with an order.

        Returns:
            The trajectories; None if the next ones have not come in time.
        """
        if self._durable is not None and (recovered := self._durable.take(max_trajectories)) is not None:
            return recovered
        if self._order is None:
            return self._queue.get(max_trajectories, timeout_s, enough=enough, keep_room=keep_room)
        while (piece := self._order.take(max_trajectories)) is None:
            arrived = self._queue.get(sys.maxsize, timeout_s)
            if arrived is None:
                return None
            self._order.add(arrived)
        return piece
