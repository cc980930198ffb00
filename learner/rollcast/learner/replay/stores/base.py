"""Where entries lie: the seam between the buffer and its column stores."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.columns.samples import ReplaySample, Room
from rollcast.learner.replay.saving.part_state import PartState
from rollcast.learner.replay.saving.row_guard import RowGuard
from rollcast.services.rollouts.rollouts import Rollout

NO_SLOTS: Slots = np.zeros(0, np.int64)


class StoreChange(NamedTuple):
    """What an insertion did.

    Attributes:
        inserted: int64 `[N]`, slots of the new entries, the oldest first.
        removed: int64 `[M]`, slots of the entries that had to go; some may be in use again.
    """

    inserted: Slots
    removed: Slots


class EntryStore(Protocol):
    """Arrays that are allocated once, and entries in them by slot. Not thread-safe; the buffer's lock guards it.

    Invariant: `size <= capacity`. A key names one entry for ever; its slot is used again.
    """

    @property
    def capacity(self) -> int:
        """Entries it holds at most."""

    @property
    def size(self) -> int:
        """Entries there are."""

    def n_entries(self, rollout: Rollout) -> int:
        """How many entries a rollout makes."""

    def fits(self, rollout: Rollout) -> bool:
        """Whether `insert` takes it in one piece; else its trajectories are inserted in several."""

    def insert(self, rollout: Rollout) -> StoreChange:
        """Copies a rollout that fits, removing as many entries as it needs to.

        Raises `InvalidRolloutError` before anything has changed.
        """

    def remove(self, slots: Slots) -> None:
        """Removes entries, without anything in their place."""

    def update_priorities(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """Takes note of priorities, where removal goes by them."""

    def find(self, keys: NDArray[np.int64]) -> tuple[Slots, NDArray[np.bool_]]:
        """Slots `[N]` of keys, and which of them are still there, bool `[N]`."""

    def make_room(self, batch_size: int) -> Room:
        """Room for a sample."""

    def gather(self, slots: Slots, room: Room, rng: np.random.Generator) -> ReplaySample:
        """Copies entries into a room, keys and all but the weights; `rng` chooses where sequences begin."""

    def clear(self) -> None:
        """Removes every entry."""

    def state(self) -> PartState:
        """What a checkpoint keeps besides the rows: which entries there are, their keys, and who goes next."""

    def load_state(self, state: PartState) -> None:
        """Takes up what `state` of an equal store has said, in place of whatever is in; its rows are then written."""

    @property
    def n_slots(self) -> int:
        """Slots are in [0, n_slots)."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, about."""

    @property
    def guard(self) -> RowGuard:
        """Told by the store before it writes into slots."""

    def has_rows(self) -> NDArray[np.bool_]:
        """Bool `[n_slots]`, a copy: in which slots there is what `row_keys` of this moment's state has keys of."""

    def row_keys(self, state: PartState) -> NDArray[np.int64]:
        """Keys of what is to be kept, by the store's `state`.

        Args:
            state: As it was, perhaps by now no longer. Any thread may ask.

        Returns:
            int64 `[n_slots]`, by slot; -1 where there is none.
        """

    def read_rows(self, slots: Slots) -> Mapping[str, NDArray[Any]]:
        """Copies of rows, int64 `[N]`; whatever is in them."""

    def write_rows(self, slots: Slots, arrays: Mapping[str, NDArray[Any]], wanted: NDArray[np.bool_]) -> None:
        """Writes back what `read_rows` has copied.

        Args:
            slots: int64 `[N]`, whose rows they are.
            arrays: The copies.
            wanted: Bool `[N]`, which of them.
        """
