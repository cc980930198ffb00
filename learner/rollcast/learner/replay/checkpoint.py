"""Writes a replay buffer into checkpoints during training, each row once, and reads it."""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.checkpoints.manifest import read_as_vouched_for
from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.saving.array_file import ArrayFileWriter, read_chunks
from rollcast.learner.replay.saving.part_state import Part, PartState, join
from rollcast.learner.replay.stores.base import EntryStore
from rollcast.services.errors import ConfigurationError

logger = logging.getLogger(__name__)

# Bytes of rows that are copied at once, under the lock: 0.2 to 1 ms.
CHUNK_BYTES: Final = 1 << 20
# A file of rows is closed at this size, so that rows overwritten together are removed together.
FILE_BYTES: Final = 64 << 20

_STATE: Final = "state.arrays"
_VALUES: Final = "values.json"
_ROWS: Final = "rows-*.arrays"
_KEYS: Final = "keys"


class BufferCheckpoint:
    """Writes and reads the state of a replay buffer.

        state.arrays, values.json    flags, priorities, draws, counters, generators, and the list of entries
        rows-NUMBER.arrays           rows of the store, each with its key; some may be outdated

    Rows do not change until they are overwritten, so later checkpoints with the same rows link to the same file.

    Args:
        lock: The buffer's lock.
        store: The buffer's store.
        parts: The parts with a state, by name; the store's name is `store`.
    """

    def __init__(self, lock: threading.Condition, store: EntryStore, parts: Mapping[str, Part]) -> None:
        self._lock = lock
        self._store = store
        self._parts = parts

    def begin(self) -> "BufferSnapshot":
        """Takes a snapshot of the buffer. `BufferSnapshot.write` may write it later, slowly, in another thread.

        Only one snapshot exists at a time: this call drops an earlier snapshot that was not written.
        """
        with self._lock:
            state = join({name: part.state() for name, part in self._parts.items()})
            self._store.guard.begin(self._store.has_rows())
        return BufferSnapshot(self._lock, self._store, state)

    def load(self, directory: Path) -> None:
        """Replaces the content of the buffer by a checkpoint's content. The buffer's keys continue.

        Raises:
            ConfigurationError: Rows are missing, a file is damaged, or the checkpoint's buffer had other settings. The
                buffer is unusable afterwards.
        """
        with read_as_vouched_for(directory), self._lock:
            arrays = {name: array for piece in read_chunks(directory / _STATE) for name, array in piece.items()}
            state = PartState(arrays, json.loads((directory / _VALUES).read_text(encoding="utf-8")))
            for name, part in self._parts.items():
                part.load_state(state.part(name))
            key_of = self._store.row_keys(state.part("store"))
            for path in sorted(directory.glob(_ROWS)):
                for piece in read_chunks(path):
                    slots = piece[_KEYS] % len(key_of)
                    wanted = key_of[slots] == piece[_KEYS]
                    self._store.write_rows(slots, piece, wanted)
                    key_of[slots[wanted]] = -1
        n_missing = int(np.count_nonzero(key_of >= 0))
        if n_missing:
            raise ConfigurationError(
                f"{directory} lacks {n_missing} rows of the replay buffer; expected all rows that its state lists; "
                "resume from another checkpoint"
            )


class BufferSnapshot:
    """A snapshot of a buffer. For one thread.

    Args:
        lock: The buffer's lock.
        store: The buffer's store, which still has the rows.
        state: The state of all parts, without the rows.
    """

    def __init__(self, lock: threading.Condition, store: EntryStore, state: PartState) -> None:
        self._lock = lock
        self._store = store
        self._state = state

    def write(
        self, directory: Path, previous: Path | None, *, rest: Callable[[], None] = lambda: None
    ) -> Mapping[Path, str]:
        """Writes the snapshot. Links the files of rows in an earlier checkpoint.

        Args:
            directory: The directory to make.
            previous: The buffer's directory in an earlier checkpoint of the same run; None: no earlier one.
            rest: Called after each chunk; it may sleep to slow down writing.

        Returns:
            The xxh3-128 digest of each file that is not a link, except `values.json`.

        Raises:
            OSError: A file cannot be written.
        """
        try:
            directory.mkdir(parents=True)
            files = sorted(previous.glob(_ROWS)) if previous is not None else []
            key_of = self._store.row_keys(self._state.part("store"))
            to_write = key_of >= 0
            rest()
            for path, slots in _files_to_link(files, key_of, self._store.row_bytes, rest):
                os.link(path, directory / path.name)
                to_write[slots] = False
                with self._lock:
                    self._store.guard.forget(slots)
            first_number = 1 + max((int(path.stem.removeprefix("rows-")) for path in files), default=0)
            digests = self._write_rows(directory, key_of, to_write.nonzero()[0], first_number, rest)
        finally:
            self.end()
        with ArrayFileWriter(directory / _STATE) as writer:
            for name, array in self._state.arrays.items():
                writer.append({name: array})
                rest()
        (directory / _VALUES).write_text(json.dumps(dict(self._state.values), indent=1) + "\n", encoding="utf-8")
        return {**digests, writer.path: writer.digest}

    def end(self) -> None:
        """Ends the snapshot, even if it was not written. Until then the buffer keeps copies of overwritten rows."""
        with self._lock:
            self._store.guard.end()

    def _write_rows(
        self, directory: Path, key_of: NDArray[np.int64], slots: Slots, first_number: int, rest: Callable[[], None]
    ) -> dict[Path, str]:
        """Writes rows, oldest first, into as many files as they need."""
        digests: dict[Path, str] = {}
        oldest = int(key_of[slots].argmin()) if len(slots) else 0
        pieces = self._read_chunks(np.roll(slots, -oldest))
        piece = next(pieces, None)
        while piece is not None:
            number = first_number + len(digests)
            with ArrayFileWriter(directory / _ROWS.replace("*", f"{number:08d}")) as writer:
                n_rows = 0
                while piece is not None and n_rows * self._store.row_bytes < FILE_BYTES:
                    its_slots, arrays = piece
                    n_rows += len(its_slots)
                    writer.append({_KEYS: key_of[its_slots], **arrays})
                    rest()
                    piece = next(pieces, None)
            digests[writer.path] = writer.digest
        return digests

    def _read_chunks(self, slots: Slots) -> Iterator[tuple[Slots, Mapping[str, NDArray[Any]]]]:
        """Copies rows, a few at a time. For rows that were overwritten since, yields their stored copies."""
        n_rows = max(1, CHUNK_BYTES // self._store.row_bytes)
        for start in range(0, len(slots), n_rows):
            with self._lock:
                pieces = self._store.guard.take(slots[start : start + n_rows], self._store.read_rows)
            # Training continues: a device may have much to do before it copies.
            for its_slots, pending in pieces:
                yield its_slots, pending()


def _files_to_link(
    files: list[Path], key_of: NDArray[np.int64], row_bytes: int, rest: Callable[[], None]
) -> Iterator[tuple[Path, Slots]]:
    """Yields the files of rows to link, with the slots of rows that are still in the buffer.

    A file is rewritten instead if most of its rows are gone, or if it is small and as many rows are to be written. So
    the number of files in a checkpoint, and of writes of a row, grows with the logarithm of the number of checkpoints.
    The files take at most twice the bytes of the rows.
    """
    found: list[tuple[Path, Slots, int]] = []
    is_there = np.zeros(len(key_of), np.bool_)
    for path in reversed(files):
        keys = _read_keys(path)
        slots = keys % len(key_of)
        slots = slots[(key_of[slots] == keys) & ~is_there[slots]]
        is_there[slots] = True
        found.append((path, slots, len(keys)))
        rest()
    n_to_write = int(np.count_nonzero(key_of >= 0)) - int(np.count_nonzero(is_there))
    for path, slots, n_rows in found:
        is_small = n_rows * row_bytes < FILE_BYTES // 2
        if 2 * len(slots) < n_rows or (is_small and len(slots) <= n_to_write):
            n_to_write += len(slots)
        else:
            yield path, slots


def _read_keys(path: Path) -> NDArray[np.int64]:
    """Returns the keys of the rows in a file; none if it is unreadable, so that its rows are written again."""
    try:
        return np.concatenate([piece[_KEYS] for piece in read_chunks(path, frozenset({_KEYS}))])
    except (OSError, ConfigurationError) as error:
        logger.warning("cannot link rows of an earlier checkpoint, so they are written again: %s", error)
        return np.zeros(0, np.int64)
