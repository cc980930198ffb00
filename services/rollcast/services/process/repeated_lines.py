"""Limits the rate of log lines from each place in the code, because a peer may cause any number of them."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

# Lines that a place may write in a burst, and per second after that. A burst is normal if many actors join or leave
# together.
_AT_ONCE: Final = 100
_PER_S: Final = 1.0


class RepeatedLines(logging.Filter):
    """Drops lines of a place that has written too many. The next line shows the number of dropped lines.

    Use it for a handler that writes to a file, a terminal or a collector. It keeps all lines of level DEBUG, because
    the user has requested them. The number of places in the code bounds its size. Safe from any thread.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()  # guards the places
        # By file and line: the lines that the place may still write, the time of its last line, and the number of lines
        # dropped since.
        self._places: dict[tuple[str, int], tuple[float, float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether to write a line, and adds the number of dropped lines to it."""
        if record.levelno <= logging.DEBUG:
            return True
        place, now = (record.pathname, record.lineno), self._clock()
        with self._lock:
            left, last, n_left_out = self._places.get(place, (float(_AT_ONCE), now, 0))
            left = min(left + (now - last) * _PER_S, _AT_ONCE)
            is_written = left >= 1.0
            self._places[place] = (left - 1.0, now, 0) if is_written else (left, now, n_left_out + 1)
        if is_written and n_left_out:
            record.msg, record.args = f"{record.getMessage()} (and {n_left_out:,} such lines omitted)", None
        return is_written
