"""The interface between the buffer and the stores of its entries."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.columns.memory import PendingRows
from rollcast.learner.replay.columns.samples import ReplaySample, Room
from rollcast.learner.replay.saving.part_state import PartState
from rollcast.learner.replay.saving.row_guard import RowGuard
from rollcast.services.rollouts.rollouts import Rollout

NO_SLOTS: Slots = np.zeros(0, np.int64)


class StoreChange(NamedTuple):
    """The slots that an insertion changed.

    Attributes:
        inserted: int64 `[N]`, slots of the new entries, oldest first.
        removed: int64 `[M]`, slots of the removed entries; new entries may reuse them.
    """

    inserted: Slots
    removed: Slots


class EntryStore(Protocol):
    """Entries by slot, in preallocated arrays. Not thread-safe; the buffer's lock guards it.

    Every slot has a row: the large part of its content, which does not change until it is overwritten. So checkpoints
    write each row once.

    Invariants: `size <= capacity`. A key identifies one entry and one row forever. The key modulo `n_slots` is the
    slot, which is reused.
    """

    @property
    def capacity(self) -> int:
        """The largest number of entries."""

    @property
    def size(self) -> int:
        """The number of entries in the store."""

    def n_entries(self, rollout: Rollout) -> int:
        """Returns the number of entries of a rollout."""

    def fits(self, rollout: Rollout) -> bool:
        """Returns True if `insert` takes the whole rollout; else its trajectories are inserted in several slices."""

    def insert(self, rollout: Rollout) -> StoreChange:
        """Copies a rollout that fits, and removes as many entries as necessary.

        Raises:
            InvalidRolloutError: The rollout lacks a final observation. The store is unchanged.
        """

    def remove(self, slots: Slots) -> None:
        """Removes entries without replacing them."""

    def update_priorities(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """Stores priorities, if they decide which entries are removed."""

    def find(self, keys: NDArray[np.int64]) -> tuple[Slots, NDArray[np.bool_]]:
        """Returns the slots `[N]` of keys, and bool `[N]`, True for entries that are still in the store."""

    def make_room(self, batch_size: int) -> Room:
        """Makes a room for samples of this size."""

    def gather(self, slots: Slots, room: Room, rng: np.random.Generator) -> ReplaySample:
        """Fills a room with entries, except for the weights; `rng` chooses the beginnings of sequences."""

    def clear(self) -> None:
        """Removes every entry."""

    def state(self) -> PartState:
        """Returns the state for a checkpoint, without the rows: entries, keys, and the order of removal."""

    def load_state(self, state: PartState) -> None:
        """Replaces all content by the `state` of an equal store. `write_rows` follows with the rows."""

    @property
    def n_slots(self) -> int:
        """The number of slots."""

    @property
    def row_bytes(self) -> int:
        """The approximate bytes of a row."""

    @property
    def guard(self) -> RowGuard:
        """Keeps copies of rows for a snapshot. The store calls it before it overwrites rows."""

    def has_rows(self) -> NDArray[np.bool_]:
        """Returns a copy, bool `[n_slots]`: True for slots with a key in `row_keys` of the present state."""

    def row_keys(self, state: PartState) -> NDArray[np.int64]:
        """Returns the keys of the rows in a state. Thread-safe.

        Args:
            state: An earlier result of `state`.

        Returns:
            int64 `[n_slots]`, by slot; -1 for a slot without a row.
        """

    def read_rows(self, slots: Slots) -> PendingRows:
        """Begins to copy the present rows of slots, int64 `[N]`. Does not wait for a device."""

    def write_rows(self, slots: Slots, arrays: Mapping[str, NDArray[Any]], wanted: NDArray[np.bool_]) -> None:
        """Writes back rows that `read_rows` copied.

        Args:
            slots: int64 `[N]`, the slots of the rows.
            arrays: The copies.
            wanted: Bool `[N]`, True for rows to write.
        """
