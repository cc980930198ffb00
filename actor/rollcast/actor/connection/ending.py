"""Tells the threads of a connection that it ends: it was closed, or its actor was stopped."""

import threading
import time

# An event cannot be waited for together with another, so the second is looked at this often.
_LOOK_S = 0.2


class Ending:
    """Two events as one: the connection's own `closing`, and the actor's `stop`. Any thread may use it.

    Args:
        stop: Set when the actor is stopped; None: it never is.

    Attributes:
        closing: Set when the connection is closed.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        self.closing = threading.Event()
        self._stop = stop or threading.Event()

    def is_set(self) -> bool:
        """Returns True once the connection is closed or the actor is stopped."""
        return self.closing.is_set() or self._stop.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Waits until either event is set, at most `timeout_s` seconds; returns `is_set`."""
        deadline = time.monotonic() + timeout_s
        while not self.is_set() and (left_s := deadline - time.monotonic()) > 0:
            self.closing.wait(min(left_s, _LOOK_S))
        return self.is_set()
