"""Reserves file descriptors for the process itself, so that clients cannot occupy all of them."""

import contextlib
import logging
from typing import Final

try:
    import resource
except ModuleNotFoundError:  # Windows, where sockets are not file descriptors
    resource = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

# The descriptors reserved for files, pipes to processes, and outgoing connections; at most half of all descriptors.
_OWN: Final = 512
# The soft limit that a server requests. It suffices for several addresses, and is small enough for programs that loop
# over all descriptors.
_ENOUGH: Final = 65_536


def room_for_connections(wanted: int) -> int:
    """Returns the number of connections that a server may accept. Raises the soft limit of descriptors if needed.

    A process without a free descriptor cannot accept a client, write a checkpoint, or write its log.

    Args:
        wanted: The number of connections that the server would accept.
    """
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        with contextlib.suppress(ValueError, OSError):  # a system may have a lower limit than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    room = max(soft - min(_OWN, soft // 2), 1)
    if room < wanted:
        _log.warning(
            "this process may have %d descriptors, so clients get %d instead of max_connections, %d; expected %d; "
            "raise `ulimit -n`, or lower --limits.max-connections",
            soft,
            room,
            wanted,
            wanted + _OWN,
        )
    return min(wanted, room)
