"""Limits a rate with token buckets, for each name and for all names together."""

import enum
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

# The number of names to keep. A dropped name starts again with a full bucket.
_MAX_NAMES: Final = 4096


class Lack(enum.Enum):
    """The bucket that lacks a token."""

    OF_NAME = 1
    OF_ALL = 2


class _Bucket:
    """A bucket, initially full. Guarded by the lock of `TokenBuckets`."""

    __slots__ = ("_capacity", "_rate", "_tokens", "_updated")

    def __init__(self, rate: float, burst_s: float, now: float) -> None:
        self._rate = rate
        self._tokens = self._capacity = max(rate * burst_s, 1.0)
        self._updated = now

    def has_token(self, now: float) -> bool:
        self._tokens = min(self._tokens + (now - self._updated) * self._rate, self._capacity)
        self._updated = now
        return self._tokens >= 1.0

    def take(self) -> None:
        self._tokens -= 1.0


class TokenBuckets:
    """A bucket for each name, and one for all names. It has a bounded size, and is safe from any thread.

    Args:
        per_second: Tokens per second for all names together.
        per_second_each: Tokens per second for one name.
        burst_s: The capacity of a bucket, in seconds of tokens. A bucket starts full.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        per_second: float,
        per_second_each: float,
        *,
        burst_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_second_each = per_second_each
        self._burst_s = burst_s
        self._clock = clock
        self._lock = threading.Lock()  # guards the buckets
        self._all = _Bucket(per_second, burst_s, clock())
        self._by_name: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, name: str) -> Lack | None:
        """Takes a token from a name's bucket and the common bucket. Returns the empty bucket; None if both had one."""
        with self._lock:
            now = self._clock()
            bucket = self._by_name.pop(name, None) or _Bucket(self._per_second_each, self._burst_s, now)
            self._by_name[name] = bucket
            if len(self._by_name) > _MAX_NAMES:
                self._by_name.popitem(last=False)
            # The name's own bucket first, because a name without a token must not take one from the common bucket.
            if not bucket.has_token(now):
                return Lack.OF_NAME
            if not self._all.has_token(now):
                return Lack.OF_ALL
            bucket.take()
            self._all.take()
            return None
