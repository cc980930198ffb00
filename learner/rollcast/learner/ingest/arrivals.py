"""In which order the trainer gets what has come from the actors."""

import sys
from typing import Protocol

from rollcast.learner.ingest.queue import RolloutQueue, RolloutSlice
from rollcast.learner.ingest.slot_order import SlotOrder


class Recovered(Protocol):
    """Rollouts that a killed learner had acknowledged and not learnt from."""

    def take(self, max_trajectories: int) -> RolloutSlice | None:
        """Returns the next trajectories, all of one rollout; None if all of them were handed out."""


class Arrivals:
    """First what a killed learner had acknowledged; then what is queued. Used by the trainer's thread.

    Args:
        queue: What has come, the oldest first.
        order: In which rollouts are handed out, whatever order they come in; None: as they come.
        durable: What was recovered; None: nothing.
    """

    def __init__(
        self, queue: RolloutQueue, *, order: SlotOrder | None = None, durable: Recovered | None = None
    ) -> None:
        self._queue = queue
        self._order = order
        self._durable = durable

    def get(self, max_trajectories: int, timeout_s: float, *, enough: int = 1) -> RolloutSlice | None:
        """Takes the next trajectories, all of one rollout.

        Args:
            max_trajectories: How many at most.
            timeout_s: How long to wait for a rollout to come, in seconds.
            enough: See `RolloutQueue.get`.

        Returns:
            The trajectories; None: those whose turn it is have not come.
        """
        if self._durable is not None and (recovered := self._durable.take(max_trajectories)) is not None:
            return recovered
        if self._order is None:
            return self._queue.get(max_trajectories, timeout_s, enough=enough)
        while (piece := self._order.take(max_trajectories)) is None:
            arrived = self._queue.get(sys.maxsize, timeout_s)
            if arrived is None:
                return None
            self._order.add(arrived)
        return piece
