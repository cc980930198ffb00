"""Limits the rate of calls, from all clients together and from each host."""

import time
from collections.abc import Callable
from typing import Final

from rollcast.services.errors import ThrottledError
from rollcast.services.limits.limits import Limits
from rollcast.services.limits.refusals import host_of
from rollcast.services.limits.token_buckets import Lack, TokenBuckets

# Actors that start together also call together.
_BURST_S: Final = 2.0


class CallRate:
    """Refuses calls above the rates of `limits`. Safe from any thread.

    Unary calls and opened streams count. Messages in a stream do not count, because credits limit them. Calls over a
    unix socket do not count, because file modes control access to the socket.

    Args:
        limits: `calls_per_second` and `calls_per_second_per_host`.
        clock: Returns the time in seconds.
        is_fixed: True: no option raises the limits.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic, *, is_fixed: bool = False) -> None:
        self._limits = limits
        self._is_fixed = is_fixed
        self._buckets = TokenBuckets(
            limits.calls_per_second, limits.calls_per_second_per_host, burst_s=_BURST_S, clock=clock
        )

    def exceeded(self, peer: str) -> str:
        """Counts a call, or an event that counts as a call.

        Args:
            peer: The caller, as gRPC names it.

        Returns:
            The name of the exceeded limit; empty if no limit was exceeded.
        """
        if peer.startswith("unix"):
            return ""
        lack = self._buckets.take(host_of(peer))
        if lack is None:
            return ""
        return "calls_per_second" if lack is Lack.OF_ALL else "calls_per_second_per_host"

    def check(self, peer: str) -> None:
        """Counts a call.

        Args:
            peer: The caller, as gRPC names it.

        Raises:
            ThrottledError: The caller, or all callers together, made too many calls.
        """
        if limit := self.exceeded(peer):
            rate = getattr(self._limits, limit)
            whose = "all clients" if limit == "calls_per_second" else host_of(peer)
            or_raise = "" if self._is_fixed else f", or raise --limits.{limit.replace('_', '-')} of the learner"
            raise ThrottledError(
                f"{whose} made more than {rate:g} calls a second; expected fewer; try again with backoff{or_raise}",
                limit=limit,
            )
