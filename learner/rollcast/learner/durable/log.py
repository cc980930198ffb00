"""The write-ahead log, which puts every accepted rollout on the disk before its acknowledgement."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollcast.learner.disk import FULL_DISK, free_bytes
from rollcast.learner.durable.coverage import Coverage, OpenRollouts
from rollcast.learner.durable.files import KnownSegment, SegmentFiles
from rollcast.learner.durable.records import LogEntry, Payload, encode_record, record_bytes
from rollcast.learner.durable.segments import SegmentWriter, encode_segment_head
from rollcast.learner.queueing.queue import SliceName
from rollcast.learner.waiting import WaitLog
from rollcast.learner.writers import metric_names
from rollcast.services.errors import NotReadyError, RollcastError
from rollcast.services.process.waiting import wait_for
from rollcast.services.rollouts.recording_codec import RecordingHeader

logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 64 << 20
# Seconds between an unhelpful early checkpoint and the next one, also on a full disk, where most fail.
_CROWDED_INTERVAL_S: Final = 1.0
_FULL_DISK_INTERVAL_S: Final = 5.0
_CLOSE_S: Final = 10.0
# The time without an answer after which `problem` reports the disk.
_HANGS_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Waiting:
    """A rollout that waits to be written."""

    number: int
    entry: bytes
    payload: Payload
    is_done: bool = False
    error: str = ""


class RolloutLog:
    """A log of rollouts in segments; removes the segments that checkpoints cover.

    Invariants: `append` returns True only when the rollout is on the disk. One thread writes at a time: one of the
    waiting threads writes all waiting rollouts, and waits for the disk once (group commit). Rollouts that arrive during
    that wait are written next. A segment that could not be written is closed, and its uncommitted part is cut off. All
    files together take at most `max_bytes` plus one segment.

    Args:
        folder: The existing folder of the log.
        header: Describes the rollouts.
        max_bytes: The limit, in bytes. Above half of it, or on a full disk, the log asks for a checkpoint, so that it
            can remove segments. At the limit, streams wait.
        next_number: The number of the next rollout.
        segments: The segments in the folder, oldest first.
        ask_for_checkpoint: Makes a checkpoint and returns when it is written; called in a separate thread.
        segment_bytes: Size of a segment, unless a rollout is larger or the disk has too little room.
    """

    def __init__(
        self,
        folder: Path,
        header: RecordingHeader,
        *,
        max_bytes: int,
        next_number: int = 0,
        segments: Sequence[KnownSegment] = (),
        ask_for_checkpoint: Callable[[], object] = lambda: None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._files = SegmentFiles(
            folder,
            encode_segment_head(header),
            segments,
            segment_bytes=segment_bytes,
            spare_bytes=max_bytes // 2,
        )
        self._ask_for_checkpoint = ask_for_checkpoint
        self.open = OpenRollouts(next_number)
        self._changed = threading.Condition()  # guards all below but the last
        self._waiting: deque[_Waiting] = deque()
        self._next_number = next_number
        self._closing = False
        self._busy_since: float | None = None
        self._problem = ""
        self._disk_is_full = False
        self._asking = threading.Event()
        self._asked_at = -math.inf
        self._full_since = math.inf
        self._wait_log = WaitLog()
        self._n_commits = self._n_rollouts = 0
        self._commit_s = 0.0
        self._covered = Coverage()  # of the last checkpoint
        self._writer: SegmentWriter | None = None  # used by the thread that writes

    def append(
        self,
        entry: Callable[[int], LogEntry],
        payload: Payload,
        *,
        is_active: Callable[[], bool],
    ) -> bool:
        """Writes a rollout; waits for its turn, for room, and for the disk.

        Args:
            entry: Makes the rollout's log entry from its number.
            payload: The rollout. Its arrays must not change during the call.
            is_active: Called at least once a second during a wait; the wait ends when it returns False.

        Returns:
            True if the rollout is on the disk. False if `is_active` returned False, or the log was closed: then do not
            acknowledge the rollout.

        Raises:
            NotReadyError: The disk is full, or has failed.
        """
        with self._changed:
            if not self._wait_for_room(is_active):
                return False
            if self._closing:
                return False
            noted = entry(self._next_number)
            self._next_number += 1
            name = SliceName(noted.actor_id, noted.incarnation, noted.sequence, 0, noted.n_trajectories)
            mine = _Waiting(noted.number, noted.encode(), payload)
            self.open.add(noted.number, name, noted.n_trajectories)
            self._waiting.append(mine)
            try:
                is_there = self._commit_mine(mine, is_active)
            except BaseException:
                self.open.discard(name)
                raise
            if not is_there:
                self.open.discard(name)
            return is_there

    def covered(self, coverage: Coverage) -> None:
        """Removes the segments that both the newly written checkpoint and the previous one cover.

        Segments that only the last checkpoint covers are kept, in case that checkpoint is damaged. Such segments are
        removed, too, if the log takes more than half of `max_bytes`, or the disk is full.
        """
        with self._changed:
            keep = coverage if self._is_crowded() else self._covered
            self._covered = coverage
        self._files.remove(keep)
        with self._changed:
            if not self._is_crowded():
                self._asked_at = -math.inf
            self._changed.notify_all()

    def problem(self) -> str:
        """Returns the reason why the log takes no rollouts; empty if it takes rollouts. Thread-safe."""
        with self._changed:
            if self._is_full():
                return f"the write-ahead log is at its limit and waits for a checkpoint: {self._use()}"
            busy_s = time.monotonic() - self._busy_since if self._busy_since is not None else 0.0
            if busy_s > _HANGS_S:
                return f"the write-ahead log's disk, {self._folder}, has not answered for {busy_s:.0f} s"
            return self._problem

    def metrics(self) -> dict[str, float]:
        """Returns metrics by name; times and counts are since the last call."""
        with self._changed:
            n_commits, n_rollouts, commit_s = max(self._n_commits, 1), self._n_rollouts, self._commit_s
            self._n_commits, self._n_rollouts, self._commit_s = 0, 0, 0.0
            return {
                metric_names.DURABLE_BYTES.tag: self._files.n_bytes,
                metric_names.DURABLE_SEGMENTS.tag: len(self._files),
                metric_names.DURABLE_COMMIT_MS.tag: 1000 * commit_s / n_commits,
                metric_names.DURABLE_ROLLOUTS_PER_COMMIT.tag: n_rollouts / n_commits,
            }

    def close(self) -> None:
        """Refuses further rollouts, and waits for running writes; does nothing after the first call."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._busy_since is None and not self._waiting, _CLOSE_S):
                logger.error(
                    "the write-ahead log's disk, %s, has not answered for %.0f s; expected it to finish writing; "
                    "rollouts that were not acknowledged are sent again",
                    self._folder,
                    _CLOSE_S,
                )
            elif self._writer is not None:
                self._writer.close()
                self._writer = None
                self._files.end()

    def _wait_for_room(self, is_active: Callable[[], bool]) -> bool:
        """Waits while the log is at its limit; returns False if the caller is gone. The caller holds the lock."""
        began = time.monotonic()

        def is_wanted() -> bool:
            self._full_since = min(self._full_since, began)
            what = "a checkpoint that makes room in the write-ahead log, which is at its limit"
            self._note_wait(f"{what}: {self._use()}", self._full_since)
            self._ask_if_crowded()
            return is_active()

        if not wait_for(self._changed, lambda: self._closing or not self._is_full(), is_active=is_wanted):
            return False
        self._full_since = math.inf
        return True

    def _commit_mine(self, mine: _Waiting, is_active: Callable[[], bool]) -> bool:
        """Waits until this or another thread has written a rollout; returns True if it is on the disk.

        The caller holds the lock.
        """

        def is_wanted() -> bool:
            if self._busy_since is not None:
                self._note_wait(f"the write-ahead log's disk, {self._folder}", self._busy_since)
            return is_active()

        while not mine.is_done:
            if self._busy_since is None:
                self._write_all()
            elif not wait_for(self._changed, lambda: mine.is_done or self._busy_since is None, is_active=is_wanted):
                if mine in self._waiting:
                    self._waiting.remove(mine)
                return False
        if mine.error:
            raise NotReadyError(mine.error)
        return True

    def _write_all(self) -> None:
        """Writes and commits all waiting rollouts. The caller, one of the waiting threads, holds the lock.

        The lock is released during the writes.
        """
        group = list(self._waiting)
        self._waiting.clear()
        began = self._busy_since = time.monotonic()
        self._changed.release()
        error, disk_is_full = f"the write-ahead log {self._folder} was interrupted; send the rollout again", False
        try:
            self._write(group)
            error = ""
        except OSError as failure:
            error, disk_is_full = self._explain(failure, group), failure.errno in FULL_DISK
        finally:
            if error and self._writer is not None:
                self._writer.abandon()
                self._writer = None
                self._files.end()
            self._changed.acquire()  # other threads hold it for a few lines only, without waiting
            self._busy_since = None
            for waiting in group:
                if not waiting.is_done:
                    waiting.is_done, waiting.error = True, error
            self._changed.notify_all()
        if self._problem and not error:
            logger.info("the write-ahead log %s is written again", self._folder)
        self._problem, self._disk_is_full = error, disk_is_full
        self._n_commits += 1
        self._n_rollouts += len(group)
        self._commit_s += time.monotonic() - began
        self._ask_if_crowded()

    def _write(self, group: Sequence[_Waiting]) -> None:
        """Writes rollouts, and waits until they are on the disk."""
        written: list[_Waiting] = []
        for waiting in group:
            n_bytes = record_bytes(waiting.entry, waiting.payload)
            if self._writer is not None and self._writer.n_written + n_bytes > self._writer.n_bytes:
                self._commit(written)
                self._writer.close()
                self._writer = None
            if self._writer is None:
                self._writer = self._files.begin(n_bytes)
            self._files.note(waiting.number)
            self._writer.write(encode_record(self._writer.name.marker, waiting.entry, waiting.payload))
            written.append(waiting)
        self._commit(written)

    def _commit(self, written: list[_Waiting]) -> None:
        if self._writer is None or not written:
            return
        self._writer.commit()
        for waiting in written:
            waiting.is_done = True
        written.clear()

    def _explain(self, failure: OSError, group: Sequence[_Waiting]) -> str:
        """Describes a disk error, and logs it if it is new."""
        n_bytes = sum(waiting.payload.n_bytes for waiting in group)
        message = f"the write-ahead log {self._folder} cannot take {n_bytes:,} bytes: {failure.strerror}; "
        if failure.errno in FULL_DISK:
            n_needed = max(record_bytes(waiting.entry, waiting.payload) for waiting in group)
            free = free_bytes(self._folder)
            message += (
                f"expected {self._files.bytes_needed(n_needed):,} bytes free on its disk for a segment of the log"
            )
            message += "" if free is None else f", not {free:,}"
            message += "; free some space, or choose a --run-dir on a larger disk"
        else:
            message += "expected a disk that works; check it"
        message += ": the rollouts are not acknowledged, and are sent again"
        if not self._problem:
            logger.error("%s", message)
        return message

    def _is_full(self) -> bool:
        return self._files.n_bytes > self._max_bytes

    def _is_crowded(self) -> bool:
        """Returns True if segments should be removed."""
        return self._disk_is_full or self._files.n_bytes > self._max_bytes // 2

    def _use(self) -> str:
        return f"{self._files.n_bytes:,} bytes in {self._folder}, of --durable-max-bytes {self._max_bytes:,}"

    def _ask_if_crowded(self) -> None:
        """Asks for a checkpoint if segments should be removed. The caller holds the lock."""
        now = time.monotonic()
        interval_s = _FULL_DISK_INTERVAL_S if self._disk_is_full else _CROWDED_INTERVAL_S
        if self._closing or self._asking.is_set() or now < self._asked_at + interval_s:
            return
        if self._is_crowded():
            self._asked_at = now
            self._asking.set()
            threading.Thread(target=self._ask, name="rollcast-log-checkpoint", daemon=True).start()

    def _ask(self) -> None:
        """Thread: asks for a checkpoint and waits until it is written."""
        try:
            self._ask_for_checkpoint()
        except (OSError, RollcastError) as error:
            logger.warning("the write-ahead log needs room, and an early checkpoint cannot be made: %s", error)
        finally:
            self._asking.clear()

    def _note_wait(self, reason: str, since: float) -> None:
        self._wait_log.note(reason, time.monotonic() - since)
