"""Bounds how often one place in the code writes to the log: a peer that can cause one line can cause a million."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

# Lines that a place may write at once, and a second after that: many actors may come or go together.
_AT_ONCE: Final = 100
_PER_S: Final = 1.0


class RepeatedLines(logging.Filter):
    """Leaves out lines of a place that has written too many; the next one that it lets through says how many.

    It is for a handler that writes to a file, a terminal or a collector. All lines of the level DEBUG are let through,
    because the user has asked for them. Its size is bounded by the number of places in the code. Safe from any thread.

    Args:
        clock: Returns the time in seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()  # guards the places
        # By file and line: lines that it may write, the time of the last, and those that were left out since.
        self._places: dict[tuple[str, int], tuple[float, float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a line is written, and adds to it how many were not."""
        if record.levelno <= logging.DEBUG:
            return True
        place, now = (record.pathname, record.lineno), self._clock()
        with self._lock:
            left, last, n_left_out = self._places.get(place, (float(_AT_ONCE), now, 0))
            left = min(left + (now - last) * _PER_S, _AT_ONCE)
            is_written = left >= 1.0
            self._places[place] = (left - 1.0, now, 0) if is_written else (left, now, n_left_out + 1)
        if is_written and n_left_out:
            record.msg, record.args = f"{record.getMessage()} (and {n_left_out:,} such lines that were left out)", None
        return is_written
