"""What a thread is waiting for, and since when, for whoever asks."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rollcast.learner.wait_log import WaitLog


class WaitMonitor:
    """Says what one thread waits for. That thread writes; any thread reads.

    Waits nest: what is waited for inside another wait is what will end it. Both are told, the outer one first, with the
    time of the outer one.
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
        """Replaces the innermost reason by one that says more, without starting the clock anew.

        To be called now and then while a wait goes on: one that lasts is logged.
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
