"""Signals the threads of a connection to end, when the connection is closed or its actor is stopped."""

import threading
import time

# A thread cannot wait for two events at once, so it checks the second one at this interval.
_LOOK_S = 0.2


class Ending:
    """The connection's `closing` event and the actor's `stop` event as one event. Safe from any thread.

    Args:
        stop: Set when the actor is stopped; None: no event stops the actor.

    Attributes:
        closing: Set when the connection is closed.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        self.closing = threading.Event()
        self._stop = stop or threading.Event()

    def is_set(self) -> bool:
        """Returns whether the connection is closed or the actor is stopped."""
        return self.closing.is_set() or self._stop.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Waits until either event is set, at most `timeout_s` seconds. Returns `is_set`."""
        deadline = time.monotonic() + timeout_s
        while not self.is_set() and (left_s := deadline - time.monotonic()) > 0:
            self.closing.wait(min(left_s, _LOOK_S))
        return self.is_set()
