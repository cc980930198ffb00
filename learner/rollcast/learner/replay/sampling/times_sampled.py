"""How often each entry was drawn, where that is limited."""

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.saving.part_state import PartState


class TimesSampled:
    """Counts draws by slot, at 4 bytes a slot. Not thread-safe; the buffer's lock guards it."""

    bytes_per_slot = 4

    def __init__(self, n_slots: int, most: int) -> None:
        """Starts with nothing drawn.

        Args:
            n_slots: Slots are below it.
            most: How often an entry may be drawn, at least 1.
        """
        self._most = most
        self._times = np.zeros(n_slots, np.int32)

    def insert(self, slots: Slots) -> None:
        """Starts counting new entries, int64 `[N]`."""
        self._times[slots] = 0

    def state(self) -> PartState:
        """What a checkpoint keeps."""
        return PartState({"times": self._times.copy()})

    def load_state(self, state: PartState) -> None:
        """Takes up what `state` has said."""
        self._times[:] = state.array("times", self._times.shape, np.int32)

    def left(self, slots: Slots) -> NDArray[np.int32]:
        """How often entries may still be drawn, int32 `[N]`."""
        return self._most - self._times.take(slots)

    def count(self, slots: Slots) -> Slots:
        """Counts a batch.

        Args:
            slots: int64 `[B]`, as they were drawn; one that was drawn twice comes twice.

        Returns:
            int64 `[N]`, those that may not be drawn again, each once.
        """
        np.add.at(self._times, slots, 1)
        distinct = np.unique(slots)
        return distinct[self._times.take(distinct) >= self._most]
