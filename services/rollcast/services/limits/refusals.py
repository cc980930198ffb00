"""Records which limits recently refused, throttled or disconnected which clients, for the status."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rollcast.services.address import shown_peer

# Only the log has older entries.
_LATELY_S: Final = 60.0
# The largest number of entries. It is bounded, because a client can call from many addresses.
_MAX_KEPT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """A client that reached a limit. `rollcast.v1.Throttled` documents the fields."""

    who: str
    limit: str
    times: int
    idle_s: float


class Refusals:
    """Counts refusals by client and limit. It has a bounded size, and is safe from any thread.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards _kept
        # By (who, limit): the count without a minute's pause and the last time; the oldest first.
        self._kept: dict[tuple[str, str], tuple[int, float]] = {}

    def note(self, who: str, limit: str) -> None:
        """Records that a client reached a limit.

        Args:
            who: An actor's name, or the caller's address from `host_of`.
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
    """Returns a caller's address without the port, because the port differs for every connection.

    Args:
        peer: The caller, in gRPC's format: "ipv4:127.0.0.1:50000", "ipv6:%5B::1%5D:50000", "unix:".

    Returns:
        The address in the usual notation, for example "127.0.0.1", "[::1]" or "unix"; see `shown_peer`.
    """
    return shown_peer(peer).rpartition(":")[0]
