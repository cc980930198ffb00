"""How fast a thread works beside training."""

import threading
import time
from typing import Final

# A stretch of work that took longer was not work: the thread had no core.
_LONGEST_REST_S: Final = 0.25


class Pace:
    """Makes a thread rest, so that it works for no more than a share of the time, until somebody is in a hurry.

    Args:
        share: In (0, 1].
    """

    def __init__(self, share: float) -> None:
        self._rest_per_work = 1.0 / share - 1.0
        self._hurry = threading.Event()
        self._since = time.monotonic()

    def rest(self) -> None:
        """To be called by the thread after each piece of its work, of some milliseconds."""
        worked_s = time.monotonic() - self._since
        self._hurry.wait(min(worked_s * self._rest_per_work, _LONGEST_REST_S))
        self._since = time.monotonic()

    def hurry(self) -> None:
        """Ends the rest, and all others: somebody waits. Any thread may call it."""
        self._hurry.set()
