"""Waits that last are told to the log."""

import logging

logger = logging.getLogger(__name__)

# Shorter waits are everyday: batches are waited for between updates.
FIRST_S = 10.0
INTERVAL_S = 60.0


class WaitLog:
    """Logs a wait at INFO, once when it has lasted 10 s and then each minute. For one thread."""

    def __init__(self) -> None:
        self._due_s = FIRST_S

    def note(self, reason: str, seconds: float) -> None:
        """Takes note of a wait that goes on; to be called now and then while it does.

        Args:
            reason: For what, with the numbers.
            seconds: How long so far. Fewer than the time before begin another wait.
        """
        if seconds < FIRST_S:
            self._due_s = FIRST_S
        elif seconds >= self._due_s:
            self._due_s = seconds + INTERVAL_S
            logger.info("waiting %.0f s for %s", seconds, reason)
