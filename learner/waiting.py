"""What a thread is waiting for, and since when, for whoever asks."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class WaitMonitor:
    """Says what one thread waits for. That thread writes; any thread reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._reason = ""
        self._since = 0.0

    @contextmanager
    def waiting_for(self, reason: str) -> Iterator[None]:
        """Marks the time spent inside as waiting for `reason`."""
        with self._lock:
            self._reason, self._since = reason, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._reason = ""

    def explain(self, reason: str) -> None:
        """Replaces the reason by one that says more, without starting the clock anew."""
        with self._lock:
            if self._reason:
                self._reason = reason

    def current(self) -> tuple[str, float]:
        """Returns the reason, empty when not waiting, and the seconds waited for it."""
        with self._lock:
            return self._reason, time.monotonic() - self._since if self._reason else 0.0
