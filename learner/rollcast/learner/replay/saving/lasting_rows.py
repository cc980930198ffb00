"""Rows that a checkpoint writes once: the seam to the stores, and what keeps them while it does."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.slots import Slots
from rollcast.learner.replay.saving.part_state import PartState

# Slots, and what `LastingRows.read_rows` has copied of them.
RowPiece: TypeAlias = tuple[Slots, Mapping[str, NDArray[Any]]]


class LastingRows(Protocol):
    """The large part of a store, by slot: what is in one does not change until another takes its place.

    What is in a slot has a key that is of nothing else, ever; modulo `n_slots` it is the slot.
    """

    @property
    def n_slots(self) -> int:
        """Slots are in [0, n_slots)."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, about."""

    @property
    def guard(self) -> "RowGuard":
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


def select(arrays: Mapping[str, NDArray[Any]], wanted: NDArray[np.bool_]) -> Mapping[str, NDArray[Any]]:
    """What is wanted of arrays `[N, ...]`, bool `[N]`; mostly all of it, and then no copies."""
    return arrays if wanted.all() else {name: array[wanted] for name, array in arrays.items()}


class RowGuard:
    """Copies rows that are about to be overwritten while a snapshot has yet to read them. The buffer's lock guards it.

    Invariant: between `begin` and `end`, a slot that had a row at `begin` is either pending, and has it still, or a
    copy of it was made. So a snapshot is of its moment, whatever is inserted meanwhile, and in whatever order.
    """

    def __init__(self) -> None:
        self._pending: NDArray[np.bool_] | None = None
        self._kept: list[RowPiece] = []

    def begin(self, has_rows: NDArray[np.bool_]) -> None:
        """Begins a snapshot of these slots, bool `[n_slots]`; one that has not ended is given up."""
        self._pending = has_rows
        self._kept = []

    @property
    def is_active(self) -> bool:
        """Whether a snapshot is being read; else there is nothing to be told."""
        return self._pending is not None

    def is_pending(self, first: int, n: int) -> bool:
        """Whether any of n slots from one on, and on from 0 after the last, would have to be copied."""
        pending = self._pending
        if pending is None:
            return False
        return bool(pending[first : first + n].any() or pending[: max(first + n - len(pending), 0)].any())

    def before_overwriting(self, slots: Slots, rows: LastingRows) -> None:
        """To be called by a store before it writes into slots, int64 `[N]`."""
        if self._pending is None:
            return
        slots = slots[self._pending[slots]]
        if len(slots):
            self._pending[slots] = False
            self._kept.append((slots, rows.read_rows(slots)))

    def forget(self, slots: Slots) -> None:
        """Says that slots, int64 `[N]`, need not be kept."""
        if self._pending is not None:
            self._pending[slots] = False

    def take(self, slots: Slots, rows: LastingRows) -> list[RowPiece]:
        """Hands out copies of everything that was kept by now, and of those of these slots that are pending."""
        assert self._pending is not None, "begin() comes first"
        self.before_overwriting(slots, rows)
        kept, self._kept = self._kept, []
        return kept

    def end(self) -> None:
        """Nothing has to be kept any more."""
        self._pending = None
        self._kept = []
