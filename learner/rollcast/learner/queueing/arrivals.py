"""Decides the order in which the trainer gets rollouts: recovered rollouts first, then queued rollouts."""

import sys
from typing import Protocol

from rollcast.learner.queueing.queue import RolloutQueue, RolloutSlice
from rollcast.learner.queueing.slot_order import SlotOrder


class Recovered(Protocol):
    """Rollouts that a killed learner had acknowledged but not yet learnt from."""

    def take(self, max_trajectories: int) -> RolloutSlice | None:
        """Returns the next trajectories of one rollout; None after the last one."""


class Arrivals:
    """The rollouts that wait for the trainer: first recovered rollouts, then the queue. Used by one thread at a time.

    Args:
        queue: The queued rollouts, oldest first.
        order: A fixed order of rollouts; None: their order of arrival.
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
        """Takes the next trajectories of one rollout.

        Args:
            max_trajectories: The most trajectories to take.
            timeout_s: The seconds to wait for a rollout.
            enough: See `RolloutQueue.get`.
            keep_room: See `RolloutQueue.get`. Not supported with an order.

        Returns:
            The trajectories; None if no rollout arrived in time.
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
