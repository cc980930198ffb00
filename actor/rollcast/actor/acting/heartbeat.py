"""Touches a file while the actor works, for health checks."""

import logging
import time
from pathlib import Path
from typing import Self

from rollcast.services.errors import ConfigurationError
from rollcast.services.process.periodic import PeriodicThread

logger = logging.getLogger(__name__)

# Seconds between two touches.
_EVERY_S = 1.0


class Heartbeat:
    """Touches a file every second, from a separate thread, while the actor works.

        with Heartbeat(path, patience_s=340.0) as heartbeat:
            heartbeat.beat()   # each time the acting thread tries to join, waits, or begins a step

    The thread touches the file while the interpreter runs threads and the acting thread has called `beat` within
    `patience_s`. It also touches the file while the actor waits for a learner, and during a long step. If the actor
    hangs, the file becomes old.

    Args:
        path: The file; None: no file is touched.
        patience_s: The longest time between two beats, in seconds. It must exceed the longest allowed step.
    """

    def __init__(self, path: Path | None, *, patience_s: float) -> None:
        self._path = path
        self._patience_s = patience_s
        self._last = time.monotonic()
        self._failed = False
        self._thread = PeriodicThread(self.touch_if_alive, _EVERY_S, name="heartbeat")

    def __enter__(self) -> Self:
        """Touches the file for the first time, and starts the thread.

        Raises:
            ConfigurationError: The file cannot be touched.
        """
        if self._path is None:
            return self
        self.beat()
        try:
            self._path.touch()
        except OSError as error:
            raise ConfigurationError(
                f"heartbeat_file {str(self._path)!r} cannot be touched ({error.strerror}); expected a file in a folder "
                "that this user may write; correct --heartbeat-file"
            ) from error
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.close()

    def beat(self) -> None:
        """Notes that the acting thread is alive. Call this method from the acting thread."""
        self._last = time.monotonic()

    def touch_if_alive(self) -> None:
        """Touches the file unless the last beat is older than `patience_s`."""
        if self._path is None or time.monotonic() - self._last > self._patience_s:
            return
        try:
            self._path.touch()
        except OSError as error:
            if not self._failed:
                logger.warning("the heartbeat file %s cannot be touched: %s; trying again", self._path, error)
            self._failed = True
