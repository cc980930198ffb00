"""Who was refused, held back or ended lately, and by which limit: what the status tells of it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# Longer ago, it is history: the log has it.
_LATELY_S: Final = 60.0
# Entries that are kept; a stranger chooses from where it calls.
_MAX_KEPT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """Who met a limit; field by field as `rollcast.v1.Throttled` documents it."""

    who: str
    limit: str
    times: int
    idle_s: float


class Refusals:
    """Counts, by who and limit. Safe from any thread; of bounded size.

    Args:
        clock: Seconds, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards _kept
        # (who, limit): how often without a minute's pause, and when last; the oldest first
        self._kept: dict[tuple[str, str], tuple[int, float]] = {}

    def note(self, who: str, limit: str) -> None:
        """Notes one.

        Args:
            who: An actor, or where the call came from, as `host_of` has it.
            limit: As `rollcast.services.limits.limits` calls it.
        """
        with self._lock:
            now = self._clock()
            times, last = self._kept.pop((who, limit), (0, now))
            self._kept[who, limit] = (times if now - last <= _LATELY_S else 0) + 1, now
            if len(self._kept) > _MAX_KEPT:
                del self._kept[next(iter(self._kept))]

    def lately(self) -> tuple[Throttled, ...]:
        """Those of the last minute, the latest first."""
        now = self._clock()
        with self._lock:
            return tuple(
                Throttled(who=who, limit=limit, times=times, idle_s=now - last)
                for (who, limit), (times, last) in reversed(self._kept.items())
                if now - last <= _LATELY_S
            )


def host_of(peer: str) -> str:
    """Where a call comes from, without the port, which is another one for every connection.

    Args:
        peer: As gRPC names it: "ipv4:127.0.0.1:50000", "ipv6:%5B::1%5D:50000", "unix:".

    Returns:
        "ipv4:127.0.0.1", "ipv6:%5B::1%5D", "unix".
    """
    return peer.rpartition(":")[0]
