"""Counts the draws of each entry, for buffers that limit them."""

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.saving.part_state import PartState


class TimesSampled:
    """Counts draws by slot, at 4 bytes a slot. Not thread-safe; the buffer's lock guards it."""

    bytes_per_slot = 4

    def __init__(self, n_slots: int, most: int) -> None:
        """Starts without draws.

        Args:
            n_slots: Number of slots.
            most: The largest number of draws of an entry, at least 1.
        """
        self._most = most
        self._times = np.zeros(n_slots, np.int32)

    def insert(self, slots: Slots) -> None:
        """Starts to count the draws of new entries, int64 `[N]`."""
        self._times[slots] = 0

    def state(self) -> PartState:
        """See `Part.state`."""
        return PartState({"times": self._times.copy()})

    def load_state(self, state: PartState) -> None:
        """See `Part.load_state`."""
        self._times[:] = state.array("times", self._times.shape, np.int32)

    def left(self, slots: Slots) -> NDArray[np.int32]:
        """Returns the remaining draws of entries, int32 `[N]`."""
        return self._most - self._times.take(slots)

    def count(self, slots: Slots) -> Slots:
        """Counts the entries of a batch.

        Args:
            slots: int64 `[B]`, as drawn; a slot drawn twice occurs twice.

        Returns:
            int64 `[N]`, the slots that may not be drawn again, each once.
        """
        np.add.at(self._times, slots, 1)
        distinct = np.unique(slots)
        return distinct[self._times.take(distinct) >= self._most]
