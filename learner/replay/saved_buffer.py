"""A replay buffer on disk: written beside training, and of a ring only what is new."""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learner.replay.entry_store import EntryStore
from learner.replay.part_state import Part, PartState, join
from services.errors import NotReadyError

# Rows of a ring that are copied at once, under the lock, and written into one file: 64k of 50 bytes take 1 ms.
SEGMENT_ROWS: Final = 1 << 16

_STATE: Final = "state.npz"
_VALUES: Final = "values.json"


class SavedBuffer:
    """Writes the state of a replay buffer, and reads it.

        state.npz, values.json    flags, priorities, draws, counters, generators; of a store in slots, its entries
        rows-FIRST-STOP.npz       of a ring: these rows, counted from the first that was ever written

    Rows of a ring do not change until they are overwritten: a file of them serves every later checkpoint that has them.

    Args:
        lock: The buffer's.
        store: Where its entries are.
        parts: By name, what has a state, the store among them.
    """

    def __init__(self, lock: threading.Condition, store: EntryStore, parts: Mapping[str, Part]) -> None:
        self._lock = lock
        self._store = store
        self._parts = parts

    def begin(self) -> "BufferSnapshot":
        """Takes note of everything as it is now; `BufferSnapshot.write` may then take its time, in another thread."""
        with self._lock:
            state = join({name: part.state() for name, part in self._parts.items()})
            rows = self._store.lasting_rows()
            snapshot = BufferSnapshot(self._lock, self._store, state, rows)
            # the oldest are the next to be overwritten
            snapshot.read_oldest()
        return snapshot

    def load(self, directory: Path) -> None:
        """Reads what an equal buffer has written, in place of whatever is in; keys go on."""
        with np.load(directory / _STATE, allow_pickle=False) as arrays:
            state = PartState(dict(arrays), json.loads((directory / _VALUES).read_text(encoding="utf-8")))
        with self._lock:
            for name, part in self._parts.items():
                part.load_state(state.part(name))
            for path in directory.glob("rows-*.npz"):
                with np.load(path, allow_pickle=False) as arrays:
                    self._store.write_rows(_range_of(path), dict(arrays))


class BufferSnapshot:
    """A buffer as it was. Used by one thread.

    Args:
        lock: The buffer's.
        store: Where its rows are.
        state: All but those.
        rows: Which rows there were.
    """

    def __init__(self, lock: threading.Condition, store: EntryStore, state: PartState, rows: range) -> None:
        self._lock = lock
        self._store = store
        self._state = state
        first = rows.start // SEGMENT_ROWS * SEGMENT_ROWS
        self._segments = [
            range(max(start, rows.start), min(start + SEGMENT_ROWS, rows.stop))
            for start in range(first, rows.stop, SEGMENT_ROWS)
        ]
        self._oldest: dict[range, Mapping[str, NDArray[Any]]] = {}

    def read_oldest(self) -> None:
        """Copies the first rows; the buffer's lock is held since they were the first."""
        for segment in self._segments[:2]:
            self._oldest[segment] = self._store.read_rows(segment)

    def write(self, directory: Path, previous: Path | None) -> None:
        """Writes everything; rows that another checkpoint has are linked.

        Args:
            directory: A new one.
            previous: Where the buffer of an earlier checkpoint of this very run is; None: there is none.

        Raises:
            NotReadyError: If rows were overwritten before it came to them: the disk stands still.
        """
        directory.mkdir(parents=True)
        there = {} if previous is None else {_range_of(path): path for path in previous.glob("rows-*.npz")}
        for segment in self._segments:
            known = next((rows for rows in there if rows.start <= segment.start and rows.stop == segment.stop), None)
            if known is not None:
                os.link(there[known], directory / there[known].name)
                continue
            arrays = self._oldest.pop(segment, None)
            if arrays is None:
                with self._lock:
                    if self._store.lasting_rows().stop - segment.start > self._store.n_slots:
                        raise NotReadyError(
                            f"rows {segment.start} to {segment.stop} of the replay buffer were overwritten before they "
                            "were saved; expected a slower buffer or a faster disk; save again"
                        )
                    arrays = self._store.read_rows(segment)
            np.savez(directory / f"rows-{segment.start}-{segment.stop}.npz", allow_pickle=False, **arrays)
        np.savez(directory / _STATE, allow_pickle=False, **self._state.arrays)
        (directory / _VALUES).write_text(json.dumps(dict(self._state.values), indent=1) + "\n", encoding="utf-8")


def _range_of(path: Path) -> range:
    """Which rows a file has."""
    _, first, stop = path.stem.split("-")
    return range(int(first), int(stop))
