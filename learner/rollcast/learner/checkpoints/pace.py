"""Slows down a thread that works during training."""

import threading
import time
from typing import Final

# The longest rest. Work that seems to need a longer one took that long because the thread had no core.
_LONGEST_REST_S: Final = 0.25


class Pace:
    """Limits a thread's work to a share of the time, until `end_rests` is called.

    Args:
        share: The share, in (0, 1].
    """

    def __init__(self, share: float) -> None:
        self._rest_per_work = 1.0 / share - 1.0
        self._is_awaited = threading.Event()
        self._since = time.monotonic()

    def rest(self) -> None:
        """Rests in proportion to the work since the last call. Call it after every few milliseconds of work."""
        worked_s = time.monotonic() - self._since
        self._is_awaited.wait(min(worked_s * self._rest_per_work, _LONGEST_REST_S))
        self._since = time.monotonic()

    def end_rests(self) -> None:
        """Ends the present rest and all later rests, because another thread waits for the work. Thread-safe."""
        self._is_awaited.set()
