"""Bounds the streams and calls that are served at once, so that probes find a free thread, and ends stuck ones."""

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
    """The place of one call that is being served. Used by the call's own thread; the gate's thread only looks at it.

    Args:
        name: Method and caller, for messages.
        peer: The caller, as gRPC names it.
        cancel: Ends the call from any thread.
        patience_s: Seconds that the caller may take to do what `expect` names.
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
        """Starts to wait for the caller.

        Args:
            what: The expected action, for the log.
        """
        self.awaited = time.monotonic() + self._patience_s, what

    def settle(self) -> None:
        """Notes that the caller has done it."""
        self.awaited = None

    def end(self) -> None:
        """Ends the call."""
        self._cancel()


class StreamGate:
    """Counts open streams, ends stuck calls, and closes in two steps: first to new streams, then to all.

    Safe from any thread.

    Invariant: at most `max_streams` streams and `max_calls` unary calls, probes not counted, hold a thread of the
    server. The threads above that number serve probes, and calls whose request has not come. A stream whose client does
    not accept a message within `stalled_stream_s` is ended, and so gives back its thread and the old policy that it
    holds.

    Args:
        limits: `max_streams`, `max_calls` and `stalled_stream_s`.
        refusals: Notes the streams that were ended.
        look_after: Called whenever the gate looks for stuck streams; they end other things that are stuck.
        is_fixed: True: no option raises the limits.
        has_threads: Whether each stream has a thread; False: an event loop serves all.
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
        self._lock = threading.Lock()  # guards the three below
        self._n_streams = 0
        self._n_calls = 0
        self._places: dict[CallPlace, None] = {}
        self._draining = threading.Event()
        self._stopping = threading.Event()
        self._watch = PeriodicThread(self._end_late, _LOOK_S, name="stream-gate")

    @property
    def draining(self) -> bool:
        """True if new streams are refused."""
        return self._draining.is_set()

    @property
    def stopping(self) -> bool:
        """True if open streams should end."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Starts the thread that ends stuck calls."""
        self._watch.start()

    def drain(self) -> None:
        """Refuses new streams from now on."""
        self._draining.set()

    def stop(self) -> None:
        """Ends open streams too, the next time they look."""
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
        """Yields a place for one stream, which has no deadline of its own; gives the place back at the end.

        Args:
            method: Its full name.
            peer: The caller, as gRPC names it.
            cancel: Ends the stream from any thread.

        Raises:
            NotReadyError: The server is draining.
            ThrottledError: `max_streams` streams are open already.
        """
        place = CallPlace(f"{method} from {shown_peer(peer)}", peer, cancel, self._limits.stalled_stream_s)
        if self.draining:
            raise NotReadyError("the learner is draining and takes no new stream; expected it to run; try again later")
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
        # A method of its own: its names would keep the last call that was looked at until there is another.
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
