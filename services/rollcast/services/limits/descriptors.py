"""Leaves a process descriptors of its own, however many clients connect: it has files to write, too."""

import contextlib
import logging
import resource
from typing import Final

_log = logging.getLogger(__name__)

# For files, pipes to processes, and connections of its own; half of all descriptors where there are few.
_OWN: Final = 512


def room_for_connections(wanted: int) -> int:
    """Returns how many connections a server may take, and raises the process's soft limit of descriptors for them.

    A process that has no descriptor left accepts nobody, and writes neither a checkpoint nor its log.

    Args:
        wanted: Connections that the server would take.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + _OWN:
        raised = wanted + _OWN if hard == resource.RLIM_INFINITY else min(wanted + _OWN, hard)
        with contextlib.suppress(ValueError, OSError):  # a system may have a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, raised), hard))
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
