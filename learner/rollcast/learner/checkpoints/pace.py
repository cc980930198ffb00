"""Slows a thread down that works beside training."""

import threading
import time
from typing import Final

# The longest rest. A piece of work that seems to need a longer one took so long because the thread had no core.
_LONGEST_REST_S: Final = 0.25


class Pace:
    """Makes a thread rest, so that it works for at most a share of the time, until `end_rests` is called.

    Args:
        share: The share, in (0, 1].
    """

    def __init__(self, share: float) -> None:
        self._rest_per_work = 1.0 / share - 1.0
        self._is_awaited = threading.Event()
        self._since = time.monotonic()

    def rest(self) -> None:
        """Rests in proportion to the work since the last call. Call it after each few milliseconds of work."""
        worked_s = time.monotonic() - self._since
        self._is_awaited.wait(min(worked_s * self._rest_per_work, _LONGEST_REST_S))
        self._since = time.monotonic()

    def end_rests(self) -> None:
        """Ends this rest and all later ones, because another thread waits for the work. Any thread may call it."""
        self._is_awaited.set()
