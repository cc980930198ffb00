"""The file by which a health check sees that an actor lives."""

import logging
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rollcast.services.errors import ConfigurationError

logger = logging.getLogger(__name__)

# How often the file is touched, in seconds.
_EVERY_S = 1.0
# How long the thread may take to end.
_JOIN_S = 10.0


class Heartbeat:
    """Touches a file every second, from a thread of its own, while the actor lives.

        with Heartbeat(path, patience_s=340.0) as heartbeat:
            heartbeat.beat()   # whenever the acting thread goes on: it tries to join, waits, or begins a step

    An actor lives if its interpreter runs threads and its acting thread has gone on within `patience_s`. So an actor
    that waits for a learner lives, and so does one whose step takes long. The file of one that hangs grows old.

    Args:
        path: The file; None: there is nothing to touch.
        patience_s: How long the acting thread may take between two beats, in seconds; longer than a step may take.
    """

    def __init__(self, path: Path | None, *, patience_s: float) -> None:
        self._path = path
        self._patience_s = patience_s
        self._last = time.monotonic()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

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
        self._thread = threading.Thread(target=self._keep, args=(self._path,), name="rollcast-heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def beat(self) -> None:
        """Says that the acting thread goes on."""
        self._last = time.monotonic()

    def _keep(self, path: Path) -> None:
        """Thread: touches the file until the actor ends."""
        failed = False
        while not self._closed.wait(_EVERY_S):
            try:
                self._touch_if_alive(path)
            except OSError as error:
                if not failed:
                    logger.warning("the heartbeat file %s cannot be touched: %s; trying again", path, error)
                failed = True

    def _touch_if_alive(self, path: Path) -> None:
        if time.monotonic() - self._last <= self._patience_s:
            path.touch()
