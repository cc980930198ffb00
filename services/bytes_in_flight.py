"""How many bytes of rollouts are being put together or wait to be taken, over all streams."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from services.errors import NotReadyError
from services.limits import DEFAULT_LIMITS, Limits
from services.refusals import Refusals

_log = logging.getLogger(__name__)

# How often who waits looks up.
_LOOK_S: Final = 0.5
# A wait of so long is told.
_NOTED_S: Final = 1.0


class BytesInFlight:
    """Room for the rollouts of all streams. Safe from any thread.

    Invariant: the rollouts that hold room have at most `max_bytes_in_flight` together. A rollout gets all of its room
    at once, before its first byte is kept, and in the order of asking: so two that are half there never wait for each
    other, and a large one does not wait for ever for small ones. Who holds room either waits for the learner, or for
    its actor's next message; where that takes longer than `stalled_stream_s` and others wait for room, the stream is
    ended.

    Args:
        limits: `max_bytes_in_flight`, which is at least `max_rollout_bytes`, and `stalled_stream_s`.
        refusals: Notes who is held back, and who was ended.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS, refusals: Refusals | None = None) -> None:
        self._limits = limits
        self._refusals = refusals or Refusals()
        self._lock = threading.Lock()  # guards everything below, and `n_bytes` of streams
        self._changed = threading.Condition(self._lock)
        self._n_bytes = 0
        self._streams: set[StreamBytes] = set()
        self._waiting: deque[StreamBytes] = deque()

    @property
    def n_bytes(self) -> int:
        """What is held just now."""
        return self._n_bytes

    @contextmanager
    def stream(self, who: str, *, cancel: Callable[[], None], is_active: Callable[[], bool]) -> Iterator["StreamBytes"]:
        """The room of one stream, which has one rollout under way at a time.

        Args:
            who: Whose stream, for messages.
            cancel: Ends the stream from any thread.
            is_active: Whether the caller is still there.

        Yields:
            The room; what is held is given back at the end.
        """
        stream = StreamBytes(self, who, cancel, is_active)
        with self._lock:
            self._streams.add(stream)
        try:
            yield stream
        finally:
            self._give_back(stream)
            with self._lock:
                self._streams.remove(stream)

    def _hold(self, stream: "StreamBytes", n_bytes: int) -> None:
        with self._lock:
            if self._waiting or self._n_bytes + n_bytes > self._limits.max_bytes_in_flight:
                self._wait_for_room(stream, n_bytes)
            self._n_bytes += n_bytes
            stream.n_bytes = n_bytes

    def _wait_for_room(self, stream: "StreamBytes", n_bytes: int) -> None:
        """Waits in the order of asking. Called with the lock held."""
        self._waiting.append(stream)
        started, noted = time.monotonic(), False
        try:
            while self._waiting[0] is not stream or self._n_bytes + n_bytes > self._limits.max_bytes_in_flight:
                self._changed.wait(_LOOK_S)
                if not stream.is_active():
                    raise NotReadyError(
                        f"{stream.who} was held back, since rollouts of {self._n_bytes} bytes are under way already, "
                        "and its stream ended meanwhile; join again with backoff and send it again"
                    )
                self._end_stalled()
                if not noted and time.monotonic() - started >= _NOTED_S:
                    noted = True
                    self._refusals.note(stream.who, "max_bytes_in_flight")
        finally:
            self._waiting.remove(stream)
            self._changed.notify_all()

    def _end_stalled(self) -> None:
        """Ends the streams that hold room and do not go on. Called with the lock held."""
        before = time.monotonic() - self._limits.stalled_stream_s
        for stream in self._streams:
            if stream.n_bytes and stream.idle_since is not None and stream.idle_since < before:
                stream.idle_since = None
                _log.warning(
                    "ended the stream of %s: it did not go on with a rollout of %d bytes for %g s, while others wait "
                    "for room (stalled_stream_s, max_bytes_in_flight)",
                    stream.who,
                    stream.n_bytes,
                    self._limits.stalled_stream_s,
                )
                self._refusals.note(stream.who, "stalled_stream_s")
                stream.cancel()

    def _give_back(self, stream: "StreamBytes") -> None:
        with self._lock:
            self._n_bytes -= stream.n_bytes
            stream.n_bytes = 0
            if self._waiting:
                self._changed.notify_all()


class StreamBytes:
    """The room of one stream; used by the stream's own thread only. Made by `BytesInFlight.stream`."""

    __slots__ = ("_room", "cancel", "idle_since", "is_active", "n_bytes", "who")

    def __init__(
        self, room: BytesInFlight, who: str, cancel: Callable[[], None], is_active: Callable[[], bool]
    ) -> None:
        self._room = room
        self.who = who
        self.cancel = cancel
        self.is_active = is_active
        self.n_bytes = 0
        # since when its actor is waited for; None: it is not
        self.idle_since: float | None = None

    def hold(self, n_bytes: int) -> None:
        """Waits for room for a rollout.

        Args:
            n_bytes: Its size.

        Raises:
            NotReadyError: The stream ended meanwhile.
        """
        self._room._hold(self, n_bytes)

    def went_on(self, *, complete: bool) -> None:
        """Notes that a message came.

        Args:
            complete: It was the last one of its rollout: from now on the learner is waited for, not the actor.
        """
        self.idle_since = None if complete else time.monotonic()

    def give_back(self) -> None:
        """Gives the room back, if any is held."""
        self._room._give_back(self)
