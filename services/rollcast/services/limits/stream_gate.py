"""How many streams and calls a server serves at once, so that probes find a free thread, and how long streams idle."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rollcast.services.errors import NotReadyError, ThrottledError
from rollcast.services.limits.limits import DEFAULT_LIMITS, Limits
from rollcast.services.limits.refusals import Refusals, host_of

_log = logging.getLogger(__name__)

# How often it looks for calls that are stuck.
_LOOK_S: Final = 0.25
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

    Invariant: at most `max_streams` streams and `max_calls` unary calls, probes not counted, hold a thread of the
    server; the threads above that number are for probes, and for calls whose request has not come. A stream whose
    client does not take what it is sent is ended after `stalled_stream_s`: what it holds, a thread and an old policy,
    is not for ever.

    Args:
        limits: `max_streams`, `max_calls` and `stalled_stream_s`.
        refusals: Notes those that were ended.
        look_after: Called whenever the gate looks for streams that are stuck; end what else does not go on.
    """

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        refusals: Refusals | None = None,
        look_after: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._limits = limits
        self._refusals = refusals or Refusals()
        self._look_after = look_after
        self._lock = threading.Lock()  # guards the three below
        self._n_streams = 0
        self._n_calls = 0
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
    def stream(self, method: str, peer: str, cancel: Callable[[], None]) -> Iterator[CallPlace]:
        """Holds a place for one stream, which may go on for as long as it likes.

        Args:
            method: Its full name.
            peer: The caller, as gRPC names it.
            cancel: Ends the stream from any thread.

        Yields:
            The place; it is given back at the end.

        Raises:
            NotReadyError: The server is draining.
            ThrottledError: `max_streams` are open already.
        """
        place = CallPlace(f"{method} from {peer}", peer, cancel, self._limits.stalled_stream_s)
        if self.draining:
            raise NotReadyError("the learner is draining and takes no new stream; expected it to run; try again later")
        with self._lock:
            if self._n_streams >= self._limits.max_streams:
                raise ThrottledError(
                    f"{self._n_streams} streams are open already; expected at most {self._limits.max_streams}; close "
                    "some, or raise --max-actors of the learner",
                    limit="max_streams",
                )
            self._n_streams += 1
            self._places.add(place)
        try:
            yield place
        finally:
            with self._lock:
                self._n_streams -= 1
                self._places.remove(place)

    @contextlib.contextmanager
    def unary_call(self) -> Iterator[None]:
        """Holds a place for one unary call, while it is answered.

        Raises:
            ThrottledError: `max_calls` are being answered already.
        """
        with self._lock:
            if self._n_calls >= self._limits.max_calls:
                raise ThrottledError(
                    f"{self._n_calls} calls are being answered already; expected at most {self._limits.max_calls}; try "
                    "again with backoff, or raise --max-actors of the learner",
                    limit="max_calls",
                )
            self._n_calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_calls -= 1

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            for end_others in self._look_after:
                end_others()
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
