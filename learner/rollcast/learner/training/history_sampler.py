"""Samples the numbers of a run once a second, from a thread of its own: an update that hangs does not stop it."""

import threading
import time
from collections.abc import Callable
from typing import Final, Self

_INTERVAL_S: Final = 1.0
# The time that the thread may take to end.
_JOIN_S: Final = 10.0


class HistorySampler:
    """A thread that calls a function about once a second.

    Args:
        sample: Takes the numbers of the moment.
        interval_s: The seconds between two calls.
    """

    def __init__(self, sample: Callable[[], None], *, interval_s: float = _INTERVAL_S) -> None:
        self._sample = sample
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rollcast-history", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._closed.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        began = time.monotonic()
        self._sample()
        # by the clock, not by adding up waits, which would drift
        while not self._closed.wait(self._interval_s - (time.monotonic() - began) % self._interval_s):
            self._sample()
