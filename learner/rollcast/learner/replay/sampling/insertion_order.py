"""Samplers by age: `Fifo` draws the oldest entries, `Lifo` the newest."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.sampling.base import DrawsLeft, Sampler
from rollcast.learner.replay.saving.part_state import PartState
from rollcast.services.errors import NotReadyError


class _InsertionOrder(Sampler):
    """A list of entries in order of insertion, with gaps for removed entries.

    The list has twice as many places as there are slots. When its end is reached, the gaps are closed. This happens at
    most once in n_slots insertions, so an insertion takes constant time on average. The list takes 24 bytes a slot.
    """

    bytes_per_slot = 24

    def __init__(self, n_slots: int) -> None:
        """Starts empty.

        Args:
            n_slots: Number of slots.
        """
        self._order = np.full(2 * n_slots, -1, np.int64)  # -1: a gap
        self._position = np.full(n_slots, -1, np.int64)
        self._start = 0
        self._end = 0

    def insert(self, slots: Slots) -> None:
        """See `Sampler.insert`."""
        if self._end + len(slots) > len(self._order):
            self._close_gaps()
        end = self._end + len(slots)
        self._order[self._end : end] = slots
        self._position[slots] = np.arange(self._end, end)
        self._end = end

    def remove(self, slots: Slots) -> None:
        """See `Sampler.remove`."""
        self._order[self._position.take(slots)] = -1
        self._position[slots] = -1

    def clear(self) -> None:
        """See `Sampler.clear`."""
        self._order.fill(-1)
        self._position.fill(-1)
        self._start = self._end = 0

    def state(self) -> PartState:
        """See `Sampler.state`."""
        return PartState({"order": self._order[self._start : self._end].copy()})

    def load_state(self, state: PartState) -> None:
        """See `Sampler.load_state`."""
        order = state.array("order", (-1,), np.int64)
        entries = PartState({"order": order[order >= 0]}).slots("order", len(self._position))
        self.clear()
        self.insert(entries)

    def _search(self, n: int, window_of: Callable[[int], Slots]) -> tuple[Slots, NDArray[np.int64]]:
        """Widens a window until it holds n entries.

        Args:
            n: Number of entries.
            window_of: Returns the given number of places, or all places if there are fewer.

        Returns:
            The window, and the indices of the entries in it.

        Raises:
            NotReadyError: There are fewer entries.
        """
        n_places = n
        while True:
            window = window_of(n_places)
            found = np.flatnonzero(window >= 0)
            if len(found) >= n:
                return window, found
            if len(window) < n_places:
                raise NotReadyError(
                    f"{n} entries were requested from a sampler that has {len(found)}; expected at most {len(found)}; "
                    "insert "
                    "more first"
                )
            n_places *= 2

    def _close_gaps(self) -> None:
        kept = self._order[self._start : self._end]
        kept = kept[kept >= 0]
        self._start, self._end = 0, len(kept)
        self._order[: self._end] = kept
        self._order[self._end :] = -1
        self._position[kept] = np.arange(self._end)


class Fifo(_InsertionOrder):
    """Draws the oldest entries, oldest first. With `max_times_sampled` 1, the buffer is a queue."""

    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """Returns the n oldest entries."""
        window, found = self._search(n, lambda n_places: self._order[self._start : self._end][:n_places])
        self._start += int(found[0])  # only gaps lie before the oldest
        return window.take(found[:n])


class Lifo(_InsertionOrder):
    """Draws the newest entries, newest first. With `max_times_sampled` 1, the buffer is a stack."""

    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """Returns the n newest entries."""
        window, found = self._search(n, lambda n_places: self._order[self._start : self._end][::-1][:n_places])
        self._end -= int(found[0])
        return window.take(found[:n])
