"""Computes the rate of something over the last few seconds."""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

_WINDOW_S: Final = 5.0
# The least time between two marks.
_MARK_S: Final = 0.5


class RecentRate:
    """The rate at which a count grows, over the last 5 s; or over the last two changes, if these are farther apart.

    Not thread-safe.

    Args:
        clock: Returns monotonic seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._count = 0
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)])

    def add(self, n: int) -> None:
        """Counts `n` more."""
        self._count += n
        now = self._clock()
        if now - self._marks[-1][0] >= _MARK_S:
            self._marks.append((now, self._count))
            while len(self._marks) > 2 and self._marks[1][0] <= now - _WINDOW_S:
                self._marks.popleft()

    def per_second(self) -> float:
        """Returns the rate; 0 once nothing has come for twice as long as the window."""
        now = self._clock()
        (began, before), (newest, _) = self._marks[0], self._marks[-1]
        if now <= began or now - newest > 2 * max(_WINDOW_S, newest - began):
            return 0.0
        return (self._count - before) / (now - began)
