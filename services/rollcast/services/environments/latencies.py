"""Records the recent times that clients have waited for their actions, and returns percentiles."""

import threading
from collections import deque
from typing import Final

import numpy as np

# The number of recent answers to keep: two seconds of 64 clients at 60 Hz.
_KEPT: Final = 8192


class Latencies:
    """The times from request to answer, for recent answers. Safe from any thread.

    Attributes:
        n_noted: The total number of answers so far.
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
        """Returns percentiles of the times, in seconds; 0 without answers.

        Args:
            of: The percentiles to return, each in [0, 100].
        """
        with self._lock:
            seconds = np.fromiter(self._seconds, np.float64, len(self._seconds))
        if not len(seconds):
            return (0.0,) * len(of)
        return tuple(np.percentile(seconds, of).tolist())
