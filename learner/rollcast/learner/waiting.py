"""Keeps the reason for which a thread waits, and since when, for the status."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rollcast.learner.wait_log import WaitLog


class WaitMonitor:
    """The reasons for which one thread waits. That thread writes; any thread reads.

    Waits nest: the end of an inner wait lets the outer one end. `current` returns both reasons, the outer one first,
    with the time of the outer one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._reasons: list[str] = []
        self._since = 0.0
        self._log = WaitLog()

    @contextmanager
    def waiting_for(self, reason: str) -> Iterator[None]:
        """Marks the time spent inside as waiting for `reason`."""
        with self._lock:
            if not self._reasons:
                self._since = time.monotonic()
            self._reasons.append(reason)
        try:
            yield
        finally:
            with self._lock:
                self._reasons.pop()

    def explain(self, reason: str) -> None:
        """Replaces the innermost reason by a more exact one; the clock runs on. Logs the wait if it is long.

        Call it now and then while a wait goes on.
        """
        with self._lock:
            if not self._reasons:
                return
            self._reasons[-1] = reason
        self._log.note(*self.current())

    def current(self) -> tuple[str, float]:
        """Returns the reason, empty when not waiting, and the seconds waited for it."""
        with self._lock:
            if not self._reasons:
                return "", 0.0
            return ", and so for ".join(self._reasons), time.monotonic() - self._since
