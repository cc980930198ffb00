"""Reserves descriptors for the process itself, however many clients connect: it also writes files."""

import contextlib
import logging
from typing import Final

try:
    import resource
except ModuleNotFoundError:  # Windows, where sockets are no descriptors
    resource = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

# For files, pipes to processes, and connections of its own; half of all descriptors where there are few.
_OWN: Final = 512
# The limit that a server asks for: enough for several addresses, and programs that go through all take no time.
_ENOUGH: Final = 65_536


def room_for_connections(wanted: int) -> int:
    """Returns how many connections a server may take, and raises the process's soft limit of descriptors for them.

    A process without a free descriptor accepts no client, and writes neither a checkpoint nor its log.

    Args:
        wanted: Connections that the server would take.
    """
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        with contextlib.suppress(ValueError, OSError):  # a system may have a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    room = max(soft - min(_OWN, soft // 2), 1)
    if room < wanted:
        _log.warning(
            "this process may have %d descriptors, of which clients get %d instead of max_connections, %d; expected "
            "%d; raise `ulimit -n`, or lower --limits.max-connections",
            soft,
            room,
            wanted,
            wanted + _OWN,
        )
    return min(wanted, room)
