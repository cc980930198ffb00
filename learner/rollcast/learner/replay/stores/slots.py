"""The base class of stores with entries in any order: `RolloutStore` and `TransitionStore`."""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.sampling.base import Sampler
from rollcast.learner.replay.saving.part_state import PartState, join
from rollcast.learner.replay.saving.row_guard import RowGuard
from rollcast.learner.replay.stores.base import NO_SLOTS, StoreChange
from rollcast.services.rollouts.rollouts import Rollout


class SlotStore(ABC):
    """A store of free and taken slots. If no slot is free, a `remover` chooses the entries to remove.

    The key of the n-th entry in slot i is n * capacity + i. Not thread-safe; the buffer's lock guards it. The
    bookkeeping takes 16 bytes an entry, in addition to the remover's memory.
    """

    bytes_per_slot = 16

    def __init__(self, capacity: int, remover: Sampler) -> None:
        """Starts empty.

        Args:
            capacity: The largest number of entries.
            remover: Draws the entries to remove.
        """
        self.capacity = capacity
        self.n_slots = capacity
        self._remover = remover
        # The number of entries each slot has had, including the present one.
        self._generation = np.zeros(capacity, np.int64)
        # A stack: the free slots are at [:n_free]; the lowest slot is taken first.
        self._free = np.arange(capacity, dtype=np.int64)[::-1].copy()
        self._n_free = capacity
        self._is_taken = np.zeros(capacity, np.bool_)
        self.guard = RowGuard()

    @property
    def size(self) -> int:
        """The number of entries in the store."""
        return self.capacity - self._n_free

    @abstractmethod
    def n_entries(self, rollout: Rollout) -> int:
        """See `EntryStore.n_entries`."""

    def fits(self, rollout: Rollout) -> bool:
        """See `EntryStore.fits`. A single trajectory always fits."""
        return rollout.n_envs == 1 or self.n_entries(rollout) <= self.capacity

    def insert(self, rollout: Rollout) -> StoreChange:
        """See `EntryStore.insert`."""
        self._prepare(rollout)
        n = self.n_entries(rollout)
        removed = NO_SLOTS
        if n > self._n_free:
            removed = self._remover.sample(n - self._n_free)
            self.remove(removed)
        slots = self._free[self._n_free - n : self._n_free][::-1].copy()
        self._n_free -= n
        self._generation[slots] += 1
        self._is_taken[slots] = True
        self._overwrite(slots, rollout)
        self._remover.insert(slots)
        return StoreChange(slots, removed)

    def remove(self, slots: Slots) -> None:
        """See `EntryStore.remove`."""
        self._remover.remove(slots)
        self._is_taken[slots] = False
        self._free[self._n_free : self._n_free + len(slots)] = slots
        self._n_free += len(slots)

    def update_priorities(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """See `EntryStore.update_priorities`."""
        self._remover.update(slots, priorities)

    def find(self, keys: NDArray[np.int64]) -> tuple[Slots, NDArray[np.bool_]]:
        """See `EntryStore.find`."""
        slots = keys % self.capacity
        return slots, (keys == self._keys(slots)) & self._is_taken.take(slots)

    def clear(self) -> None:
        """Removes every entry; keys are not reused."""
        self._remover.clear()
        self._is_taken.fill(False)
        self._free[:] = np.arange(self.capacity)[::-1]
        self._n_free = self.capacity

    def has_rows(self) -> NDArray[np.bool_]:
        """See `EntryStore.has_rows`."""
        return self._is_taken.copy()

    def row_keys(self, state: PartState) -> NDArray[np.int64]:
        """See `EntryStore.row_keys`."""
        slots = state.part("slots").arrays
        keys: NDArray[np.int64] = slots["generation"] * self.capacity
        keys += np.arange(self.capacity)
        keys[slots["free"]] = -1
        return keys

    def state(self) -> PartState:
        """See `EntryStore.state`."""
        bookkeeping = PartState(
            {
                "generation": self._generation.copy(),
                "free": self._free[: self._n_free].copy(),
            }
        )
        return join({"slots": bookkeeping, "remover": self._remover.state()})

    def load_state(self, state: PartState) -> None:
        """See `EntryStore.load_state`."""
        slots = state.part("slots")
        self._generation[:] = slots.array("generation", (self.capacity,), np.int64)
        free = slots.slots("free", self.capacity)
        self._n_free = len(free)
        self._free[: self._n_free] = free
        self._is_taken.fill(True)
        self._is_taken[free] = False
        self._remover.load_state(state.part("remover"))

    def _keys(self, slots: Slots) -> NDArray[np.int64]:
        return self._generation.take(slots) * self.capacity + slots

    @abstractmethod
    def _prepare(self, rollout: Rollout) -> None:
        """Performs every step that can fail, before any change."""

    @abstractmethod
    def _overwrite(self, slots: Slots, rollout: Rollout) -> None:
        """Notifies the guard, and copies the rollout's entries into the slots."""
