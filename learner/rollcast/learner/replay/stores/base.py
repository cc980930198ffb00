"""The Protocol between the buffer and the stores that keep its entries."""

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
        inserted: int64 `[N]`, slots of the new entries, the oldest first.
        removed: int64 `[M]`, slots of the entries removed to make room; new entries may use them again.
    """

    inserted: Slots
    removed: Slots


class EntryStore(Protocol):
    """Entries by slot, in arrays that are allocated once. Not thread-safe; the buffer's lock guards it.

    Every slot has a row: the large part of its content, which does not change until another takes its place. So a
    checkpoint writes each row once.

    Invariants: `size <= capacity`. A key names one entry, and one row, for ever; modulo `n_slots` it is the slot, which
    is used again.
    """

    @property
    def capacity(self) -> int:
        """The number of entries it holds at most."""

    @property
    def size(self) -> int:
        """The number of entries in it."""

    def n_entries(self, rollout: Rollout) -> int:
        """Returns how many entries a rollout makes."""

    def fits(self, rollout: Rollout) -> bool:
        """Returns True if `insert` takes the rollout in one piece; else its trajectories are inserted in several."""

    def insert(self, rollout: Rollout) -> StoreChange:
        """Copies a rollout that fits, and removes as many entries as needed for it.

        Raises:
            InvalidRolloutError: The rollout lacks a final observation. Nothing has changed then.
        """

    def remove(self, slots: Slots) -> None:
        """Removes entries without others in their place."""

    def update_priorities(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """Notes priorities, if removal goes by them."""

    def find(self, keys: NDArray[np.int64]) -> tuple[Slots, NDArray[np.bool_]]:
        """Returns the slots `[N]` of keys, and bool `[N]`, True for entries that are still in the store."""

    def make_room(self, batch_size: int) -> Room:
        """Makes a room for samples of this size."""

    def gather(self, slots: Slots, room: Room, rng: np.random.Generator) -> ReplaySample:
        """Fills a room with entries, except for the weights; `rng` chooses where sequences begin."""

    def clear(self) -> None:
        """Removes every entry."""

    def state(self) -> PartState:
        """Returns the state for a checkpoint, without the rows: entries, keys, and the order of removal."""

    def load_state(self, state: PartState) -> None:
        """Replaces everything by the `state` of an equal store; `write_rows` follows with the rows."""

    @property
    def n_slots(self) -> int:
        """The number of slots."""

    @property
    def row_bytes(self) -> int:
        """The approximate bytes of a row."""

    @property
    def guard(self) -> RowGuard:
        """Keeps copies of rows for a snapshot; the store tells it before it overwrites them."""

    def has_rows(self) -> NDArray[np.bool_]:
        """Returns bool `[n_slots]`, a copy: True for slots that `row_keys` of the present state gives a key."""

    def row_keys(self, state: PartState) -> NDArray[np.int64]:
        """Returns the keys of the rows that belong to a state. Any thread may call.

        Args:
            state: An earlier result of `state`.

        Returns:
            int64 `[n_slots]`, by slot; -1 for a slot without a row.
        """

    def read_rows(self, slots: Slots) -> PendingRows:
        """Begins to copy the rows of slots, int64 `[N]`, with their content now. Does not wait for a device."""

    def write_rows(self, slots: Slots, arrays: Mapping[str, NDArray[Any]], wanted: NDArray[np.bool_]) -> None:
        """Writes back rows that `read_rows` copied.

        Args:
            slots: int64 `[N]`, the slots of the rows.
            arrays: The copies.
            wanted: Bool `[N]`, True for rows to write.
        """
