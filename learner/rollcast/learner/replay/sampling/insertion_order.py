"""Samplers that go by age: FIFO draws the oldest entries, LIFO the newest."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.sampling.base import DrawsLeft, Sampler
from rollcast.learner.replay.saving.part_state import PartState
from rollcast.services.errors import NotReadyError


class _InsertionOrder(Sampler):
    """The entries in the order in which they came, with gaps where some were removed.

    The list has twice as many places as there are slots. When its end is reached, the gaps are closed: as that takes
    at least n_slots insertions, an insertion costs no more for it. 24 bytes a slot.
    """

    bytes_per_slot = 24

    def __init__(self, n_slots: int) -> None:
        """Starts empty.

        Args:
            n_slots: Slots are below it.
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
            n: How many entries.
            window_of: Returns so many places, or all there are.

        Returns:
            The window, and the indices of the entries in it.

        Raises:
            NotReadyError: There are fewer.
        """
        n_places = n
        while True:
            window = window_of(n_places)
            found = np.flatnonzero(window >= 0)
            if len(found) >= n:
                return window, found
            if len(window) < n_places:
                raise NotReadyError(
                    f"{n} entries were asked of a sampler that has {len(found)}; expected at most {len(found)}; insert "
                    "more before"
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
    """The oldest entries, the oldest first; with `max_times_sampled` 1, a queue."""

    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """The n oldest entries."""
        window, found = self._search(n, lambda n_places: self._order[self._start : self._end][:n_places])
        self._start += int(found[0])  # what is before the oldest stays a gap
        return window.take(found[:n])


class Lifo(_InsertionOrder):
    """The newest entries, the newest first; with `max_times_sampled` 1, a stack."""

    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """The n newest entries."""
        window, found = self._search(n, lambda n_places: self._order[self._start : self._end][::-1][:n_places])
        self._end -= int(found[0])
        return window.take(found[:n])
