"""Keeps how long clients have waited for their actions lately, and returns percentiles of it."""

import threading
from collections import deque
from typing import Final

import numpy as np

# Actions that are looked at: at 64 clients of 60 Hz, those of the last two seconds.
_KEPT: Final = 8192


class Latencies:
    """The times from a request for actions to the answer, of the last answers. Any thread may call.

    Attributes:
        n_noted: The number of all answers so far.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both below
        self._seconds: deque[float] = deque(maxlen=_KEPT)
        self.n_noted = 0

    def note(self, seconds: float) -> None:
        """Notes the time of an answer, in seconds."""
        with self._lock:
            self._seconds.append(seconds)
            self.n_noted += 1

    def percentiles(self, *of: float) -> tuple[float, ...]:
        """Returns percentiles of the times, in seconds; 0 without any.

        Args:
            of: Each in [0, 100].
        """
        with self._lock:
            seconds = np.fromiter(self._seconds, np.float64, len(self._seconds))
        if not len(seconds):
            return (0.0,) * len(of)
        return tuple(np.percentile(seconds, of).tolist())
