"""Limits the memory of incoming and waiting rollouts, for all streams together."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rollcast.services.errors import NotReadyError
from rollcast.services.limits.limits import DEFAULT_LIMITS, Limits
from rollcast.services.limits.refusals import Refusals
from rollcast.services.process.waiting import wait_for

_log = logging.getLogger(__name__)

# A stream that waits longer is recorded for the status, at its next check whether the caller is still connected.
_NOTED_S: Final = 0.5
# A stream that sends fewer bytes of a rollout within `stalled_stream_s` counts as stalled.
_PROGRESS_BYTES: Final = 64 << 10


class BytesInFlight:
    """The memory budget for the rollouts of all streams. Safe from any thread.

    The bytes of the messages that have arrived count, not the size in a rollout's header.

    Invariants: all streams together hold at most `max_bytes_in_flight`. Incomplete rollouts hold at most
    `max_bytes_in_flight - max_rollout_bytes`, except the rollout of one stream, the favourite. So the favourite always
    finishes: complete rollouts leave when the learner takes them, and the remaining memory suffices for the largest
    rollout. Without a favourite, the first waiting stream becomes the favourite. Waiting streams get memory in the
    order of their requests.

    Args:
        limits: `max_bytes_in_flight`, at least `max_rollout_bytes`, and `stalled_stream_s`.
        refusals: Records the clients that wait, and the clients whose streams this object ends.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS, refusals: Refusals | None = None) -> None:
        self._limits = limits
        self._max_half_sent = limits.max_bytes_in_flight - limits.max_rollout_bytes
        self._refusals = refusals or Refusals()
        self._lock = threading.Lock()  # guards everything below, and `n_bytes` and `is_half_sent` of streams
        self._n_bytes = 0
        # The bytes of the streams whose rollout is incomplete.
        self._n_half_sent = 0
        self._favourite: StreamBytes | None = None
        self._streams: dict[StreamBytes, None] = {}
        self._waiting: deque[StreamBytes] = deque()

    @property
    def n_bytes(self) -> int:
        """The bytes that all streams hold now."""
        return self._n_bytes

    @property
    def n_waiting(self) -> int:
        """The number of streams that wait for memory."""
        return len(self._waiting)

    @contextmanager
    def stream(self, who: str, *, cancel: Callable[[], None], is_active: Callable[[], bool]) -> Iterator["StreamBytes"]:
        """Yields the account of one stream, which sends one rollout at a time. Releases all its bytes at the end.

        Args:
            who: The stream's actor, for messages.
            cancel: Ends the stream from any thread.
            is_active: Returns whether the client is still connected.
        """
        stream = StreamBytes(self, who, cancel, is_active)
        with self._lock:
            self._streams[stream] = None
        try:
            yield stream
        finally:
            self._give_back(stream)
            with self._lock:
                del self._streams[stream]

    def end_stalled(self) -> None:
        """Ends the streams that have not continued a rollout in time. Call this regularly."""
        before = time.monotonic() - self._limits.stalled_stream_s
        with self._lock:
            stalled = [
                stream for stream in self._streams if (since := stream.idle_since) is not None and since < before
            ]
        for stream in stalled:
            stream.idle_since = None
            _log.warning(
                "ended the stream of %s: it did not continue a rollout within %g s, after %d bytes of it "
                "(stalled_stream_s)",
                stream.who,
                self._limits.stalled_stream_s,
                stream.n_bytes,
            )
            self._refusals.note(stream.who, "stalled_stream_s")
            stream.cancel()

    def _hold(self, stream: "StreamBytes", n_bytes: int, *, completes: bool) -> bool:
        """Takes memory for a stream, and waits if necessary. Returns whether the stream had to wait."""
        with self._lock:
            has_turn = not self._waiting or stream is self._favourite
            waits = n_bytes > 0 and not (has_turn and self._fits(stream, n_bytes, completes=completes))
            try:
                if waits:
                    self._wait_for_room(stream, n_bytes, completes=completes)
                self._set(stream, stream.n_bytes + n_bytes, is_half_sent=not completes)
                if completes and stream is self._favourite:
                    self._favourite = None
            finally:
                # Only now, because the memory that this stream takes is not free for the next.
                self._wake_next()
            return waits

    def _set(self, stream: "StreamBytes", n_bytes: int, *, is_half_sent: bool) -> None:
        """Sets the bytes that a stream holds. Called with the lock held."""
        self._n_half_sent += n_bytes * is_half_sent - stream.n_bytes * stream.is_half_sent
        self._n_bytes += n_bytes - stream.n_bytes
        stream.n_bytes, stream.is_half_sent = n_bytes, is_half_sent

    def _wake_next(self) -> None:
        """Wakes the streams that may continue: the first waiting one, and the favourite. Called with the lock held."""
        if self._waiting:
            self._waiting[0].changed.notify()
        if self._favourite is not None:
            self._favourite.changed.notify()

    def _fits(self, stream: "StreamBytes", n_bytes: int, *, completes: bool) -> bool:
        if self._n_bytes + n_bytes > self._limits.max_bytes_in_flight:
            return False
        if completes or stream is self._favourite:
            return True
        favourite = self._favourite
        n_others = self._n_half_sent
        if favourite is not None and favourite.is_half_sent:
            n_others -= favourite.n_bytes
        return n_others + n_bytes <= self._max_half_sent

    def _may_go_on(self, stream: "StreamBytes", n_bytes: int, *, completes: bool) -> bool:
        """Returns whether it is a waiting stream's turn, and its bytes fit. Called with the lock held."""
        if stream is not self._favourite:
            if self._waiting[0] is not stream:
                return False
            is_full = self._n_bytes + n_bytes > self._limits.max_bytes_in_flight
            if self._favourite is None and not is_full and not self._fits(stream, n_bytes, completes=completes):
                self._favourite = stream
        return self._fits(stream, n_bytes, completes=completes)

    def _wait_for_room(self, stream: "StreamBytes", n_bytes: int, *, completes: bool) -> None:
        """Waits in the order of the requests. Called with the lock held."""
        self._waiting.append(stream)
        started, noted = time.monotonic(), False

        def may_go_on() -> bool:
            return self._may_go_on(stream, n_bytes, completes=completes)

        def is_active() -> bool:
            nonlocal noted
            if not stream.is_active():
                return False
            if not noted and time.monotonic() - started >= _NOTED_S:
                noted = True
                self._refusals.note(stream.who, "max_bytes_in_flight")
            return True

        try:
            if not wait_for(stream.changed, may_go_on, is_active=is_active):
                raise NotReadyError(
                    f"{stream.who} waited, because rollouts of {self._n_bytes} bytes are already in flight, and its "
                    "stream ended; expected it to wait; join again with backoff and send the rollout again"
                )
        finally:
            self._waiting.remove(stream)

    def _give_back(self, stream: "StreamBytes") -> None:
        with self._lock:
            self._set(stream, 0, is_half_sent=False)
            if stream is self._favourite:
                self._favourite = None
            self._wake_next()


class StreamBytes:
    """The bytes that one stream holds. `BytesInFlight.stream` makes it. Only the stream's own thread uses it."""

    __slots__ = (
        "_n_unnoted",
        "_room",
        "cancel",
        "changed",
        "idle_since",
        "is_active",
        "is_half_sent",
        "n_bytes",
        "who",
    )

    def __init__(
        self, room: BytesInFlight, who: str, cancel: Callable[[], None], is_active: Callable[[], bool]
    ) -> None:
        self._room = room
        self.who = who
        self.cancel = cancel
        self.is_active = is_active
        self.n_bytes = 0
        self.is_half_sent = False
        # Notified when there may be memory for the stream.
        self.changed = threading.Condition(room._lock)
        # The time since which the stream waits for more bytes from the actor; None: it does not wait.
        self.idle_since: float | None = None
        self._n_unnoted = 0

    def hold(self, n_bytes: int, *, completes: bool) -> None:
        """Waits until the memory for one message is free.

        Args:
            n_bytes: The bytes of the message's tensors; for the first message, also the bytes of the rollout's objects.
            completes: Whether the message completes the rollout. The stream then waits for the learner, not for the
                actor.

        Raises:
            NotReadyError: The stream ended during the wait.
        """
        idle_since, self.idle_since = self.idle_since, None
        has_waited = self._room._hold(self, n_bytes, completes=completes)
        self._n_unnoted += n_bytes
        if completes:
            self._n_unnoted = 0
        elif idle_since is None or has_waited or self._n_unnoted >= _PROGRESS_BYTES:
            self._n_unnoted = 0
            self.idle_since = time.monotonic()
        else:
            self.idle_since = idle_since

    def give_back(self) -> None:
        """Releases all bytes that the stream holds."""
        self._room._give_back(self)
