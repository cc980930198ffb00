"""Remembers the clients that were refused, held back or ended lately, and by which limit, for the status."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rollcast.services.address import shown_peer

# Older entries are left to the log.
_LATELY_S: Final = 60.0
# Entries that are kept; bounded, since a stranger chooses where it calls from.
_MAX_KEPT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """A client that met a limit; field by field as `rollcast.v1.Throttled` documents it."""

    who: str
    limit: str
    times: int
    idle_s: float


class Refusals:
    """Counts refusals by client and limit. Safe from any thread; of bounded size.

    Args:
        clock: Returns the time in seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards _kept
        # By (who, limit): the count without a minute's pause and the last time; the oldest first.
        self._kept: dict[tuple[str, str], tuple[int, float]] = {}

    def note(self, who: str, limit: str) -> None:
        """Notes that a client met a limit.

        Args:
            who: An actor, or the caller's address as `host_of` returns it.
            limit: The limit's name in `rollcast.services.limits.limits`.
        """
        with self._lock:
            now = self._clock()
            times, last = self._kept.pop((who, limit), (0, now))
            self._kept[who, limit] = (times if now - last <= _LATELY_S else 0) + 1, now
            if len(self._kept) > _MAX_KEPT:
                del self._kept[next(iter(self._kept))]

    def lately(self) -> tuple[Throttled, ...]:
        """Returns the entries of the last minute, the latest first."""
        now = self._clock()
        with self._lock:
            return tuple(
                Throttled(who=who, limit=limit, times=times, idle_s=now - last)
                for (who, limit), (times, last) in reversed(self._kept.items())
                if now - last <= _LATELY_S
            )


def host_of(peer: str) -> str:
    """Returns a caller's address without the port, which differs for every connection.

    Args:
        peer: The caller, as gRPC names it: "ipv4:127.0.0.1:50000", "ipv6:%5B::1%5D:50000", "unix:".

    Returns:
        "127.0.0.1", "[::1]", "unix": as people write it, see `shown_peer`.
    """
    return shown_peer(peer).rpartition(":")[0]
