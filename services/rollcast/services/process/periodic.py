"""Runs a function periodically, in its own thread."""

import threading
import time
from collections.abc import Callable
from typing import Final, Self

# The time that the function may take to return when the thread is closed.
_JOIN_S: Final = 10.0


class PeriodicThread:
    """A thread that calls a function once an interval, from `start` to `close`, or in a `with` block.

    It keeps to the clock: the time that the function takes does not add up. It does not keep the process.

    Args:
        function: Called each time; it may call `stop` to end the thread. An error that it raises ends the thread.
        interval_s: The seconds between two calls; the first call comes at once.
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
        """Ends the thread after the call that runs, without a wait."""
        self._closed.set()

    def close(self) -> None:
        """Ends the thread, and waits up to 10 s for a call that runs."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        began, n_due = time.monotonic(), 0
        while not self._closed.is_set():
            self._function()
            now = time.monotonic()
            # Counted, because the rest of an interval may be less than the clock can tell: the next call is another.
            n_due = max(n_due, int((now - began) / self._interval_s)) + 1
            self._closed.wait(began + n_due * self._interval_s - now)
