"""Writes metrics to an experiment tracker in a separate thread, so that failures never stop training."""

import logging
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rollcast.learner.disk import write_whole
from rollcast.learner.writers.tracker_backends import Tracker, TrackerName, finite

logger = logging.getLogger(__name__)

# The number of records that may wait for a slow tracker; later ones are dropped. At one in 2 s, half an hour.
_MAX_WAITING: Final = 900
# The time limit for writing the remaining records, in seconds.
_CLOSE_TIMEOUT_S: Final = 30.0
# The interval between logs of a tracker's failures, and between attempts to start it, in seconds.
_LOG_EVERY_S: Final = 60.0
_START_EVERY_S: Final = 60.0


def identity_path(run_dir: Path, name: TrackerName) -> Path:
    """Returns the path of the file with the identity of a run's tracker run."""
    return run_dir / f"{name}.run"


def start_or_continue(tracker: Tracker, identity_path: Path) -> None:
    """Starts a tracker's run, or continues an earlier process's run. Raises the tracker's exceptions.

    Args:
        tracker: The tracker, not yet started.
        identity_path: The file with the run's identity; written if missing.
    """
    identity = identity_path.read_text(encoding="utf-8") if identity_path.is_file() else None
    if identity is None and (identity := tracker.new_identity()) is not None:
        write_whole(identity_path, identity.encode())
    begun = tracker.start(identity)
    if begun != identity:
        write_whole(identity_path, begun.encode())


class TrackerWriter:
    """A tracker's run. A thread writes the records, so that a tracker that hangs or fails does not delay training.

    A file in the run's folder has the identity with which a resumed run continues the same tracker run.

    Args:
        name: The tracker's name, for the log and the file.
        tracker: The tracker, not yet started.
        run_dir: The run's folder.
        close_timeout_s: The longest wait of `close` for unwritten records, in seconds.
    """

    def __init__(
        self, name: TrackerName, tracker: Tracker, run_dir: Path, *, close_timeout_s: float = _CLOSE_TIMEOUT_S
    ) -> None:
        self._name, self._tracker, self._close_timeout_s = name, tracker, close_timeout_s
        self._identity_path = identity_path(run_dir, name)
        self._records: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(_MAX_WAITING)
        self._next_log = 0.0
        self._n_lost = 0
        self._thread = threading.Thread(target=self._work, name=f"rollcast-{name}", daemon=True)
        self._thread.start()

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Queues a record; see `MetricsWriter.write`. Never waits: drops the record if too many are queued."""
        try:
            self._records.put_nowait((env_steps, metrics))
        except queue.Full:
            self._lost(f"it is {_MAX_WAITING} records behind")

    def close(self) -> None:
        """Waits up to `close_timeout_s` for unwritten records; idempotent."""
        if not self._thread.is_alive():
            return
        try:
            self._records.put(None, timeout=self._close_timeout_s)
        except queue.Full:
            return
        self._thread.join(self._close_timeout_s)
        if self._thread.is_alive():
            logger.error(
                "%s has not taken the last records within %.0f s; they are in metrics.jsonl",
                self._name,
                self._close_timeout_s,
            )

    def _work(self) -> None:
        started, next_start = self._start(), time.monotonic() + _START_EVERY_S
        while (record := self._records.get()) is not None:
            if not started and time.monotonic() >= next_start:
                started, next_start = self._start(), time.monotonic() + _START_EVERY_S
            if not started:
                self._n_lost += 1
                continue
            try:
                self._tracker.log(record[0], finite(record[1]))
            except Exception as error:  # noqa: BLE001 - a tracker may raise anything, and training continues
                self._lost(f"{type(error).__name__}: {error}")
        if not started:
            return
        try:
            self._tracker.finish()
        except Exception as error:  # noqa: BLE001 - likewise
            self._lost(f"{type(error).__name__}: {error}")

    def _start(self) -> bool:
        """Starts the tracker's run, or continues an earlier process's run; returns whether that worked."""
        try:
            start_or_continue(self._tracker, self._identity_path)
        except Exception as error:  # noqa: BLE001 - without account or network it may raise anything
            self._lost(f"{type(error).__name__}: {error}", records=0)
            return False
        return True

    def _lost(self, why: str, *, records: int = 1) -> None:
        self._n_lost += records
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + _LOG_EVERY_S
            logger.error(
                "%s does not take records (%d so far): %s; training continues, and metrics.jsonl has all of them",
                self._name,
                self._n_lost,
                why,
            )
