"""Limits the number and the duration of half-open calls, whose headers have arrived but whose request has not."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rollcast.services.limits.limits import DEFAULT_LIMITS, Limits
from rollcast.services.limits.refusals import Refusals, host_of

_log = logging.getLogger(__name__)

# A flood of such calls is logged this often.
_TOLD_EVERY_S: Final = 10.0


@dataclass(slots=True, eq=False)
class _HalfOpenCall:
    """A call that waits for its request."""

    host: str
    deadline: float
    limit: str
    cancel: Callable[[], None]


class HalfOpenCalls:
    """Limits the calls that wait for their request, because each of them occupies a thread. Safe from any thread.

    A request nearly always arrives with its headers, so an honest call is half open only for a moment. Invariant: at
    most `max_half_open_calls` calls are half open, and at most `max_half_open_calls_per_host` calls of one host. A call
    above a limit ends the oldest half-open call of its host, or of all hosts. So a client that sends no requests ends
    only its own calls, and honest calls are answered. Each half-open call has a deadline.

    Args:
        limits: `max_half_open_calls`, `max_half_open_calls_per_host`, `request_s` and `stalled_stream_s`.
        refusals: Records the ended calls.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS, refusals: Refusals | None = None) -> None:
        self._limits = limits
        self._refusals = refusals or Refusals()
        self._lock = threading.Lock()  # guards all below
        self._calls: dict[_HalfOpenCall, None] = {}  # in the order of arrival
        self._n_by_host: dict[str, int] = {}
        self._n_untold = 0
        self._tell_at = 0.0

    @contextlib.contextmanager
    def call(self, peer: str, cancel: Callable[[], None], *, is_large: bool) -> Iterator[None]:
        """Holds a place for a call while it waits for its request.

        Args:
            peer: The caller, as gRPC names it.
            cancel: Ends the call from any thread.
            is_large: Whether the request may be large or is part of a stream. The deadline is then `stalled_stream_s`.
        """
        limit = "stalled_stream_s" if is_large else "request_s"
        deadline = time.monotonic() + getattr(self._limits, limit)
        call = _HalfOpenCall(host_of(peer), deadline, limit, cancel)
        with self._lock:
            self._calls[call] = None
            self._n_by_host[call.host] = self._n_by_host.get(call.host, 0) + 1
            too_many = self._take_one_too_many(call.host)
        if too_many is not None:
            self._end([too_many])
        try:
            yield
        finally:
            with self._lock:
                self._forget(call)

    def end_late(self) -> None:
        """Ends the calls whose request has not arrived in time. Call this regularly."""
        now = time.monotonic()
        with self._lock:
            late = [call for call in self._calls if call.deadline < now]
            for call in late:
                self._forget(call)
        self._end(late)

    def _take_one_too_many(self, host: str) -> _HalfOpenCall | None:
        """Removes and returns the oldest call if there are too many. Called with the lock held."""
        if self._n_by_host[host] > self._limits.max_half_open_calls_per_host:
            oldest = next(call for call in self._calls if call.host == host)
            oldest.limit = "max_half_open_calls_per_host"
        elif len(self._calls) > self._limits.max_half_open_calls:
            oldest = next(iter(self._calls))
            oldest.limit = "max_half_open_calls"
        else:
            return None
        self._forget(oldest)
        return oldest

    def _forget(self, call: _HalfOpenCall) -> None:
        """Stops counting a call. Idempotent. Called with the lock held."""
        if call not in self._calls:
            return
        del self._calls[call]
        self._n_by_host[call.host] -= 1
        if not self._n_by_host[call.host]:
            del self._n_by_host[call.host]

    def _end(self, calls: list[_HalfOpenCall]) -> None:
        for call in calls:
            self._refusals.note(call.host, call.limit)
            call.cancel()
        if not calls:
            return
        with self._lock:
            self._n_untold += len(calls)
            now = time.monotonic()
            if now < self._tell_at:
                return
            n_ended, self._n_untold = self._n_untold, 0
            self._tell_at = now + _TOLD_EVERY_S
        _log.warning("ended %d calls that sent no request, the last of %s (%s)", n_ended, call.host, call.limit)
