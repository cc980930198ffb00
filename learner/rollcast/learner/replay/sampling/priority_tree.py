"""What the sum tree and the minimum tree share: leaves in a row, and above them one value for every 16 below."""

from abc import ABC, abstractmethod
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Measured with numpy 2.4 and 1M leaves, 512 at a time: 16 needs 5 levels where 2 needs 20, and the cost of a level is
# that of its dozen numpy calls, whatever is in it. 8 and 32 are a tenth slower.
FAN_OUT: Final = 16
_SHIFT: Final = FAN_OUT.bit_length() - 1


class PriorityTree(ABC):
    """A reduction over `capacity` leaves, kept level by level; a batch of leaves costs O(log capacity) numpy calls.

    Setting leaves only notes their parents. The levels above are made anew when the tree is next asked for anything but
    leaves, for all that were set since then at once: whoever inserts ten times for each sample climbs the tree once.

    Invariant: after `_settle`, every inner value is the reduction of its 16 children as they are now. It is computed
    anew from them and never adjusted by a difference, so nothing drifts however often leaves are set.

    Not thread-safe; the buffer's lock guards it. It takes `bytes_per_leaf` bytes a leaf, and at most 8 more for each 16
    while parents are noted.
    """

    bytes_per_leaf: Final = 8 * FAN_OUT / (FAN_OUT - 1)

    def __init__(self, capacity: int, empty: float) -> None:
        """Makes a tree whose leaves are all empty.

        Args:
            capacity: Number of leaves, at least 1.
            empty: Value of a leaf that is not there: the reduction's neutral element.
        """
        self.capacity = capacity
        self._empty = empty
        # From the leaves up, [n_nodes, 16] each; the last level is one node, whose reduction is the root.
        self._levels: list[NDArray[np.float64]] = []
        n_nodes = -(-capacity // FAN_OUT)
        while True:
            self._levels.append(np.full((n_nodes, FAN_OUT), empty))
            if n_nodes == 1:
                break
            n_nodes = -(-n_nodes // FAN_OUT)
        self._flat = [level.reshape(-1) for level in self._levels]
        # Parents of leaves that were set, with doubles; None: there were so many that every node is made anew.
        self._unsettled: list[NDArray[np.int64]] | None = []
        self._n_unsettled = 0

    def set(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Sets leaves; of an index given twice, the last value stays.

        Args:
            indices: int64 `[N]`, each in [0, capacity).
            values: float64 `[N]`, finite, at least 0.
        """
        self._flat[0][indices] = values
        if self._unsettled is None:
            return
        self._n_unsettled += len(indices)
        if self._n_unsettled < len(self._levels[0]):
            self._unsettled.append(indices >> _SHIFT)
        else:
            self._unsettled = None

    def _settle(self) -> None:
        """Makes the levels above the leaves agree with them; whoever reads those levels calls it before."""
        if self._unsettled == []:
            return
        nodes = None if self._unsettled is None else _first_of_runs(np.concatenate(self._unsettled))
        self._unsettled, self._n_unsettled = [], 0
        for level, above in zip(self._levels[:-1], self._flat[1:], strict=True):
            if nodes is None or len(nodes) >= len(level):  # up there every node is touched
                nodes = None
                above[: len(level)] = self._reduce(level)
            else:
                above[nodes] = self._reduce(level.take(nodes, 0))
                nodes = nodes >> _SHIFT

    def get(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Leaves as they were set.

        Args:
            indices: int64 `[N]`, each in [0, capacity).

        Returns:
            float64 `[N]`.
        """
        return self._flat[0].take(indices)

    def leaves(self) -> NDArray[np.float64]:
        """A copy of all leaves, float64 `[capacity]`."""
        return self._flat[0][: self.capacity].copy()

    def load_leaves(self, values: NDArray[np.float64]) -> None:
        """Sets all leaves, float64 `[capacity]`."""
        self._flat[0][: self.capacity] = values
        self._unsettled = None

    def clear(self) -> None:
        """Empties every leaf."""
        for level in self._levels:
            level.fill(self._empty)
        self._unsettled, self._n_unsettled = [], 0

    @staticmethod
    @abstractmethod
    def _reduce(nodes: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64 `[N, 16]` to `[N]`."""


def _first_of_runs(nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Leaves out what equals the one before it: leaves side by side are set together, and share parents."""
    is_first = np.ones(len(nodes), np.bool_)
    np.not_equal(nodes[1:], nodes[:-1], is_first[1:])
    return nodes[is_first]
