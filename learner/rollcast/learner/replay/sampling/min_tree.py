"""A vectorised tree of minima: finds the k smallest leaves."""

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.sampling.priority_tree import FAN_OUT, PriorityTree


class MinTree(PriorityTree):
    """Minima over `capacity` leaves. See `PriorityTree` for the invariant and the threads."""

    def __init__(self, capacity: int) -> None:
        """Makes a tree of empty leaves (infinity).

        Args:
            capacity: Number of leaves, at least 1.
        """
        super().__init__(capacity, empty=np.inf)

    def unset(self, indices: NDArray[np.int64]) -> None:
        """Empties leaves.

        Args:
            indices: int64 `[N]`, each in [0, capacity).
        """
        self.set(indices, np.full(len(indices), np.inf))

    def smallest(self, k: int) -> NDArray[np.int64]:
        """The k smallest leaves, exactly; among equals any.

        On every level the k smallest nodes hold them: a node outside is no smaller than k others.

        Args:
            k: How many, at least 1 and at most the number of leaves that are set.

        Returns:
            int64 `[k]`, in no order.
        """
        self._settle()
        nodes = np.zeros(1, np.int64)
        for level in reversed(self._levels):
            values = level.take(nodes, 0).reshape(-1)
            children = (nodes[:, None] * FAN_OUT + np.arange(FAN_OUT)).reshape(-1)
            there = values < np.inf  # the last node of a level may have fewer children than 16
            nodes, values = children[there], values[there]
            if len(nodes) > k:
                nodes = nodes[np.argpartition(values, k - 1)[:k]]
        return nodes

    @staticmethod
    def _reduce(nodes: NDArray[np.float64]) -> NDArray[np.float64]:
        reduced: NDArray[np.float64] = nodes.min(axis=1)
        return reduced
