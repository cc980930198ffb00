"""Runs a function periodically, in its own thread."""

import threading
import time
from collections.abc import Callable
from typing import Final, Self

# The longest wait of `close` for the running call.
_JOIN_S: Final = 10.0


class PeriodicThread:
    """A thread that calls a function at fixed intervals, from `start` to `close`, or in a `with` block.

    The duration of a call does not delay later calls. The thread does not keep the process alive.

    Args:
        function: The function. It may call `stop` to end the thread. An exception ends the thread, too.
        interval_s: The seconds between two calls. The first call is immediate.
        name: The thread's name, without "rollcast-".
    """

    def __init__(self, function: Callable[[], None], interval_s: float, *, name: str) -> None:
        self._function = function
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rollcast-{name}", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the running call, and returns at once."""
        self._closed.set()

    def close(self) -> None:
        """Ends the thread, and waits up to 10 s for a running call."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        began, n_due = time.monotonic(), 0
        while not self._closed.is_set():
            self._function()
            now = time.monotonic()
            # Counted, because the rest of an interval may be below the clock's resolution, and would be waited for
            # twice.
            n_due = max(n_due, int((now - began) / self._interval_s)) + 1
            self._closed.wait(began + n_due * self._interval_s - now)
