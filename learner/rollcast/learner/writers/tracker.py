"""Writes metrics to an experiment tracker in a thread of its own: failures never stop training."""

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

# Records that wait for a slow tracker; later ones are dropped. At one in 2 s, half an hour.
_MAX_WAITING: Final = 900
# The rest of a run is written for so long, in seconds.
_CLOSE_TIMEOUT_S: Final = 30.0
# A tracker that fails is told about so often, and one that does not start is tried again so often, in seconds.
_LOG_EVERY_S: Final = 60.0
_START_EVERY_S: Final = 60.0


def identity_path(run_dir: Path, name: TrackerName) -> Path:
    """Returns the file of a run's folder with the identity of its run of a tracker."""
    return run_dir / f"{name}.run"


def start_or_continue(tracker: Tracker, identity_path: Path) -> None:
    """Starts a tracker's run, or continues that of an earlier process. Raises whatever the tracker raises.

    Args:
        tracker: The tracker, not started.
        identity_path: The file with the identity of that run; written if there is none.
    """
    identity = identity_path.read_text(encoding="utf-8") if identity_path.is_file() else None
    if identity is None and (identity := tracker.new_identity()) is not None:
        write_whole(identity_path, identity.encode())
    begun = tracker.start(identity)
    if begun != identity:
        write_whole(identity_path, begun.encode())


class TrackerWriter:
    """A tracker's run. A thread writes the records; a tracker that hangs or fails does not delay training.

    A file of the run's folder has the identity with which a resumed run continues the same run of the tracker.

    Args:
        name: The tracker's name, for the log and the file.
        tracker: The tracker, not started.
        run_dir: The run's folder.
        close_timeout_s: How long `close` waits for records that are not written yet, in seconds.
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
        """Queues a record; see `MetricsWriter.write`. Never waits: it drops the record if too many wait already."""
        try:
            self._records.put_nowait((env_steps, metrics))
        except queue.Full:
            self._lost(f"it is {_MAX_WAITING} records behind")

    def close(self) -> None:
        """Waits until the rest is written, for so long; idempotent."""
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
        """Starts the tracker's run, or continues that of an earlier process; returns whether that worked."""
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
