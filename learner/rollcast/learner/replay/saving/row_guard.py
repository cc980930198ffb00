"""Rows that a checkpoint writes once: the seam to the stores, and what keeps them while it does."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots

# Slots, and copies of their rows.
ReadRows: TypeAlias = Callable[[Slots], Mapping[str, NDArray[Any]]]
RowPiece: TypeAlias = tuple[Slots, Mapping[str, NDArray[Any]]]


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

    def before_overwriting(self, slots: Slots, read_rows: ReadRows) -> None:
        """To be called by a store before it writes into slots, int64 `[N]`."""
        if self._pending is None:
            return
        slots = slots[self._pending[slots]]
        if len(slots):
            self._pending[slots] = False
            self._kept.append((slots, read_rows(slots)))

    def forget(self, slots: Slots) -> None:
        """Says that slots, int64 `[N]`, need not be kept."""
        if self._pending is not None:
            self._pending[slots] = False

    def take(self, slots: Slots, read_rows: ReadRows) -> list[RowPiece]:
        """Hands out copies of everything that was kept by now, and of those of these slots that are pending."""
        assert self._pending is not None, "begin() comes first"
        self.before_overwriting(slots, read_rows)
        kept, self._kept = self._kept, []
        return kept

    def end(self) -> None:
        """Nothing has to be kept any more."""
        self._pending = None
        self._kept = []
