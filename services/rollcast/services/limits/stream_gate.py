"""Limits concurrent streams and calls, so that probes find a free thread, and ends stuck streams and calls."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rollcast.services.address import shown_peer
from rollcast.services.errors import NotReadyError, ThrottledError
from rollcast.services.limits.limits import DEFAULT_LIMITS, Limits
from rollcast.services.limits.refusals import Refusals, host_of
from rollcast.services.process.periodic import PeriodicThread
from rollcast.services.process.switching import set_switch_interval

_log = logging.getLogger(__name__)

# Seconds between two searches for stuck calls.
_LOOK_S: Final = 0.25


class CallPlace:
    """The place of one call in progress. The call's own thread uses the place; the gate's thread only reads it.

    Args:
        name: The method and the caller, for messages.
        peer: The caller, as gRPC names it.
        cancel: Ends the call from any thread.
        patience_s: Seconds that the caller may take for an action announced to `expect`.
    """

    __slots__ = ("_cancel", "_patience_s", "awaited", "name", "peer")

    def __init__(self, name: str, peer: str, cancel: Callable[[], None], patience_s: float) -> None:
        self.name = name
        self.peer = peer
        self._cancel = cancel
        self._patience_s = patience_s
        # The deadline and the expected action, in one tuple, so that no lock is needed.
        self.awaited: tuple[float, str] | None = None

    def expect(self, what: str) -> None:
        """Starts to wait for an action of the caller.

        Args:
            what: The expected action, for the log.
        """
        self.awaited = time.monotonic() + self._patience_s, what

    def settle(self) -> None:
        """Notes that the caller has done the expected action."""
        self.awaited = None

    def end(self) -> None:
        """Ends the call."""
        self._cancel()


class StreamGate:
    """Counts open streams and ends stuck calls. `drain` refuses new streams, and `stop` ends all streams.

    Safe from any thread.

    Invariant: at most `max_streams` streams and `max_calls` unary calls, except probes, hold a thread of the server.
    The other threads serve probes, and calls whose request has not arrived. The gate ends a stream whose client does
    not accept a message within `stalled_stream_s`. This releases the stream's thread and its old policy.

    Args:
        limits: `max_streams`, `max_calls` and `stalled_stream_s`.
        refusals: Records the ended streams.
        look_after: Functions that end other stuck calls. The gate calls them whenever it checks for stuck streams.
        is_fixed: True: no option raises the limits.
        has_threads: Whether each stream has a thread; False: an event loop serves all streams.
    """

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        refusals: Refusals | None = None,
        look_after: Sequence[Callable[[], None]] = (),
        is_fixed: bool = False,
        has_threads: bool = True,
    ) -> None:
        self._limits = limits
        self._has_threads = has_threads
        self._or_raise = "" if is_fixed else ", or raise --max-actors of the learner"
        self._refusals = refusals or Refusals()
        self._look_after = look_after
        self._lock = threading.Lock()  # guards the three fields below
        self._n_streams = 0
        self._n_calls = 0
        self._places: dict[CallPlace, None] = {}
        self._draining = threading.Event()
        self._stopping = threading.Event()
        self._watch = PeriodicThread(self._end_late, _LOOK_S, name="stream-gate")

    @property
    def draining(self) -> bool:
        """True if the gate refuses new streams."""
        return self._draining.is_set()

    @property
    def stopping(self) -> bool:
        """True if open streams must end."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Starts the thread that ends stuck calls."""
        self._watch.start()

    def drain(self) -> None:
        """Refuses new streams from now on."""
        self._draining.set()

    def stop(self) -> None:
        """Ends open streams at their next check, and refuses new streams."""
        self._draining.set()
        self._stopping.set()
        self._watch.close()

    def check_running(self) -> None:
        """Raises if the server is stopping, to end the stream that calls it.

        Raises:
            NotReadyError: The server is stopping.
        """
        if self.stopping:
            raise NotReadyError("the learner is stopping; expected it to run; reconnect with backoff")

    @contextlib.contextmanager
    def stream(self, method: str, peer: str, cancel: Callable[[], None]) -> Iterator[CallPlace]:
        """Yields a place for one stream; releases it at the end.

        Args:
            method: The method's full name.
            peer: The caller, as gRPC names it.
            cancel: Ends the stream from any thread.

        Raises:
            NotReadyError: The server is draining.
            ThrottledError: `max_streams` streams are open already.
        """
        place = CallPlace(f"{method} from {shown_peer(peer)}", peer, cancel, self._limits.stalled_stream_s)
        if self.draining:
            raise NotReadyError("the learner is draining and accepts no stream; expected it to run; try again later")
        with self._lock:
            if self._n_streams >= self._limits.max_streams:
                raise ThrottledError(
                    f"{self._n_streams} streams are open already; expected at most {self._limits.max_streams}; close "
                    f"some{self._or_raise}",
                    limit="max_streams",
                )
            self._n_streams += 1
            self._places[place] = None
            self._set_switch_interval()
        try:
            yield place
        finally:
            with self._lock:
                self._n_streams -= 1
                del self._places[place]
                self._set_switch_interval()

    @contextlib.contextmanager
    def unary_call(self) -> Iterator[None]:
        """Holds a place for one unary call while it is answered.

        Raises:
            ThrottledError: `max_calls` calls are being answered already.
        """
        with self._lock:
            if self._n_calls >= self._limits.max_calls:
                raise ThrottledError(
                    f"{self._n_calls} calls are being answered already; expected at most {self._limits.max_calls}; try "
                    f"again with backoff{self._or_raise}",
                    limit="max_calls",
                )
            self._n_calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_calls -= 1

    def _set_switch_interval(self) -> None:
        if self._has_threads:
            set_switch_interval(self._n_streams)

    def _end_late(self) -> None:
        for end_others in self._look_after:
            end_others()
        self._end_stuck()

    def _end_stuck(self) -> None:
        # A separate method: a local variable of the loop would keep the last inspected call alive until there is
        # another.
        now = time.monotonic()
        with self._lock:
            places = tuple(self._places)
        for place in places:
            awaited = place.awaited
            if awaited is None or now < awaited[0]:
                continue
            place.settle()  # so that it is logged once
            _log.warning(
                "ended %s: it did not %s within %g s (stalled_stream_s)",
                place.name,
                awaited[1],
                self._limits.stalled_stream_s,
            )
            self._refusals.note(host_of(place.peer), "stalled_stream_s")
            place.end()
