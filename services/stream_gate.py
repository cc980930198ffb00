"""How many streams a server serves at once, so that control calls always find a free thread, and how long they idle."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from services.errors import NotReadyError, ThrottledError
from services.limits import DEFAULT_LIMITS, Limits
from services.refusals import Refusals, host_of

_log = logging.getLogger(__name__)

# How often it looks for calls that are stuck.
_LOOK_S: Final = 0.5
_JOIN_TIMEOUT_S: Final = 5.0


class CallPlace:
    """One call that is served. For the thread that serves it; the gate's own thread only looks.

    Args:
        name: Method and caller, for messages.
        peer: The caller, as gRPC names it.
        cancel: Ends the call from any thread.
        patience_s: How long the caller may take for what `expect` expects of it.
    """

    __slots__ = ("_cancel", "_patience_s", "awaited", "name", "peer")

    def __init__(self, name: str, peer: str, cancel: Callable[[], None], patience_s: float) -> None:
        self.name = name
        self.peer = peer
        self._cancel = cancel
        self._patience_s = patience_s
        # until when, and for what; one tuple, so that no lock is needed
        self.awaited: tuple[float, str] | None = None

    def expect(self, what: str) -> None:
        """Waits for the caller from now on.

        Args:
            what: What it is to do, for the log.
        """
        self.awaited = time.monotonic() + self._patience_s, what

    def settle(self) -> None:
        """The caller has done it."""
        self.awaited = None

    def end(self) -> None:
        """Ends the call."""
        self._cancel()


class StreamGate:
    """Counts open streams, ends calls that are stuck, and closes in two steps: first to new ones, then to all.

    Safe from any thread.

    Invariant: at most `max_streams` streams hold a thread of the server; the threads above that number are for unary
    calls. A call whose client does not send its request, or does not take what it is sent, is ended after
    `stalled_stream_s`: what it holds, a thread and an old policy, is not for ever.

    Args:
        limits: `max_streams` and `stalled_stream_s`.
        refusals: Notes those that were ended.
        look_after: Called whenever the gate looks for calls that are stuck: ends what else does not go on.
    """

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        refusals: Refusals | None = None,
        look_after: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits = limits
        self._refusals = refusals or Refusals()
        self._look_after = look_after
        self._lock = threading.Lock()  # guards the two below
        self._n_streams = 0
        self._places: set[CallPlace] = set()
        self._draining = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def draining(self) -> bool:
        """Whether new streams are refused."""
        return self._draining.is_set()

    @property
    def stopping(self) -> bool:
        """Whether open streams shall end."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Looks after calls that are stuck, from now on."""
        self._thread = threading.Thread(target=self._watch, name="rollcast-stream-gate", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Refuses new streams from now on."""
        self._draining.set()

    def stop(self) -> None:
        """Ends open streams too, as soon as they look."""
        self._draining.set()
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT_S)

    def check_running(self) -> None:
        """Ends a stream when the server stops.

        Raises:
            NotReadyError: The server is stopping.
        """
        if self.stopping:
            raise NotReadyError("the learner is stopping; expected it to run; reconnect with backoff")

    @contextlib.contextmanager
    def call(self, method: str, peer: str, cancel: Callable[[], None], *, is_stream: bool) -> Iterator[CallPlace]:
        """Holds a place for one call.

        Args:
            method: Its full name.
            peer: The caller, as gRPC names it.
            cancel: Ends the call from any thread.
            is_stream: Whether it may go on for as long as it likes, and so counts.

        Yields:
            The place; it is given back at the end.

        Raises:
            NotReadyError: The server is draining, and this is a stream.
            ThrottledError: `max_streams` are open already.
        """
        place = CallPlace(f"{method} from {peer}", peer, cancel, self._limits.stalled_stream_s)
        if is_stream and self.draining:
            raise NotReadyError("the learner is draining and takes no new stream; expected it to run; try again later")
        with self._lock:
            if is_stream and self._n_streams >= self._limits.max_streams:
                raise ThrottledError(
                    f"{self._n_streams} streams are open already; expected at most {self._limits.max_streams}; close "
                    "some, or raise --max-actors of the learner",
                    limit="max_streams",
                )
            self._n_streams += is_stream
            self._places.add(place)
        try:
            yield place
        finally:
            with self._lock:
                self._n_streams -= is_stream
                self._places.remove(place)

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self._look_after()
            now = time.monotonic()
            with self._lock:
                places = tuple(self._places)
            for place in places:
                awaited = place.awaited
                if awaited is None or now < awaited[0]:
                    continue
                place.settle()  # said once
                _log.warning(
                    "ended %s: it did not %s within %g s (stalled_stream_s)",
                    place.name,
                    awaited[1],
                    self._limits.stalled_stream_s,
                )
                self._refusals.note(host_of(place.peer), "stalled_stream_s")
                place.end()
