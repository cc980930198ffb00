"""Keeps copies of rows that are overwritten during the write of a checkpoint."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.columns.memory import PendingRows

# Begins to copy the rows of slots: `EntryStore.read_rows`.
ReadRows: TypeAlias = Callable[[Slots], PendingRows]
# Slots, and copies of their rows.
KeptRows: TypeAlias = tuple[Slots, PendingRows]


def select(arrays: Mapping[str, NDArray[Any]], wanted: NDArray[np.bool_]) -> Mapping[str, NDArray[Any]]:
    """Selects rows of arrays `[N, ...]` by bool `[N]`. Copies nothing in the usual case that all rows are wanted."""
    return arrays if wanted.all() else {name: array[wanted] for name, array in arrays.items()}


class RowGuard:
    """Copies rows before they are overwritten, if a snapshot has not read them yet. The buffer's lock guards it.

    Invariant: between `begin` and `end`, a slot that had a row at `begin` is either pending, with the same row, or its
    row was copied. So a snapshot shows the state at `begin`, without later insertions.
    """

    def __init__(self) -> None:
        self._pending: NDArray[np.bool_] | None = None
        self._kept: list[KeptRows] = []

    def begin(self, has_rows: NDArray[np.bool_]) -> None:
        """Begins a snapshot of these slots, bool `[n_slots]`, and drops an unfinished snapshot."""
        self._pending = has_rows
        self._kept = []

    def is_pending(self, first: int, n: int) -> bool:
        """Returns True if any of n slots from `first` on (slot 0 follows the last) must be copied before a write."""
        pending = self._pending
        if pending is None:
            return False
        return bool(pending[first : first + n].any() or pending[: max(first + n - len(pending), 0)].any())

    def before_overwriting(self, slots: Slots, read_rows: ReadRows) -> None:
        """Copies the pending rows among slots, int64 `[N]`. A store calls it before it writes into the slots."""
        if self._pending is None:
            return
        slots = slots[self._pending[slots]]
        if len(slots):
            self._pending[slots] = False
            self._kept.append((slots, read_rows(slots)))

    def forget(self, slots: Slots) -> None:
        """Removes slots, int64 `[N]`, from the snapshot, because their rows need no copies."""
        if self._pending is not None:
            self._pending[slots] = False

    def take(self, slots: Slots, read_rows: ReadRows) -> list[KeptRows]:
        """Returns the copies so far, and begins copies of the pending rows among these slots."""
        assert self._pending is not None, "begin() comes first"
        self.before_overwriting(slots, read_rows)
        kept, self._kept = self._kept, []
        return kept

    def end(self) -> None:
        """Ends the snapshot, and drops its copies."""
        self._pending = None
        self._kept = []
