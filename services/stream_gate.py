"""How many streams a server serves at once, so that control calls always find a free thread."""

import contextlib
import threading
from collections.abc import Iterator

from services.errors import LimitExceededError, NotReadyError


class StreamGate:
    """Counts open streams and closes in two steps: first to new ones, then to all. Safe from any thread.

    Invariant: at most `max_streams` streams hold a thread of the server; the threads above that number are for unary
    calls.

    Args:
        max_streams: How many streams may be open at once.
    """

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._lock = threading.Lock()  # guards _n_streams
        self._n_streams = 0
        self._draining = threading.Event()
        self._stopping = threading.Event()

    @property
    def draining(self) -> bool:
        """Whether new streams are refused."""
        return self._draining.is_set()

    @property
    def stopping(self) -> bool:
        """Whether open streams shall end."""
        return self._stopping.is_set()

    def drain(self) -> None:
        """Refuses new streams from now on."""
        self._draining.set()

    def stop(self) -> None:
        """Ends open streams too, as soon as they look."""
        self._draining.set()
        self._stopping.set()

    def check_running(self) -> None:
        """Ends a stream when the server stops.

        Raises:
            NotReadyError: The server is stopping.
        """
        if self.stopping:
            raise NotReadyError("the learner is stopping; expected it to run; reconnect with backoff")

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Holds a place for one stream.

        Yields:
            Nothing; the place is given back at the end.

        Raises:
            NotReadyError: The server is draining.
            LimitExceededError: `max_streams` are open already.
        """
        if self.draining:
            raise NotReadyError("the learner is draining and takes no new stream; expected it to run; try again later")
        with self._lock:
            if self._n_streams >= self._max_streams:
                raise LimitExceededError(
                    f"{self._n_streams} streams are open already; expected at most {self._max_streams}; close some, or "
                    "raise max_actors of the learner"
                )
            self._n_streams += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_streams -= 1
