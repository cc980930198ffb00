"""Limits calls a second, from all clients and from each host, by token buckets."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from rollcast.services.errors import ThrottledError
from rollcast.services.limits.limits import Limits
from rollcast.services.limits.refusals import host_of

# Seconds' worth of calls that a bucket holds: actors that start together also call together.
_BURST_S: Final = 2.0
# Hosts that are remembered. A forgotten one starts again with a full bucket.
_MAX_HOSTS: Final = 4096


class _Bucket:
    """A bucket of at most `_BURST_S` seconds' worth of tokens. Guarded by the lock of `CallRate`."""

    __slots__ = ("_rate", "_tokens", "_updated")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._tokens = max(rate * _BURST_S, 1.0)
        self._updated = now

    def has_token(self, now: float) -> bool:
        self._tokens = min(self._tokens + (now - self._updated) * self._rate, max(self._rate * _BURST_S, 1.0))
        self._updated = now
        return self._tokens >= 1.0

    def take(self) -> None:
        self._tokens -= 1.0


class CallRate:
    """Refuses calls above the rates of `limits`. Safe from any thread.

    Unary calls count, and streams when they are opened; credits bound what travels in a stream. Calls over a unix
    socket do not count: file modes decide who may open one.

    Args:
        limits: `calls_per_second` and `calls_per_second_per_host`.
        clock: Returns the time in seconds; replaced in tests.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()  # guards the buckets
        self._all = _Bucket(limits.calls_per_second, clock())
        self._hosts: OrderedDict[str, _Bucket] = OrderedDict()

    def check(self, peer: str) -> None:
        """Counts a call.

        Args:
            peer: The caller, as gRPC names it.

        Raises:
            ThrottledError: The caller, or all callers together, made too many calls.
        """
        if peer.startswith("unix"):
            return
        host = host_of(peer)
        limits = self._limits
        with self._lock:
            now = self._clock()
            bucket = self._hosts.pop(host, None) or _Bucket(limits.calls_per_second_per_host, now)
            self._hosts[host] = bucket
            if len(self._hosts) > _MAX_HOSTS:
                self._hosts.popitem(last=False)
            # The host's bucket first: a host that calls too often takes nothing from the others.
            host_may = bucket.has_token(now)
            if may := host_may and self._all.has_token(now):
                bucket.take()
                self._all.take()
        if not may:
            limit, rate, whose = (
                ("calls_per_second", limits.calls_per_second, "all clients")
                if host_may
                else ("calls_per_second_per_host", limits.calls_per_second_per_host, host)
            )
            raise ThrottledError(
                f"{whose} made more than {rate:g} calls a second; expected fewer; try again with backoff, or raise "
                f"--limits.{limit.replace('_', '-')} of the learner",
                limit=limit,
            )
