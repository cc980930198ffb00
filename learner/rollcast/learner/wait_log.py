"""Logs long waits."""

import logging

logger = logging.getLogger(__name__)

# Shorter waits are normal: the trainer waits for a batch between updates.
FIRST_S = 10.0
INTERVAL_S = 60.0


class WaitLog:
    """Logs a wait at INFO after 10 s, and each minute from then on. For one thread."""

    def __init__(self) -> None:
        self._due_s = FIRST_S

    def note(self, reason: str, seconds: float) -> None:
        """Logs the wait if it is time to. Call it now and then while a wait goes on.

        Args:
            reason: The reason of the wait, with its numbers.
            seconds: The seconds waited so far. Fewer than `FIRST_S` mean that another wait has begun.
        """
        if seconds < FIRST_S:
            self._due_s = FIRST_S
        elif seconds >= self._due_s:
            self._due_s = seconds + INTERVAL_S
            logger.info("waiting %.0f s for %s", seconds, reason)
