"""Waits at the end of training for disconnected actors, to tell them that training has ended."""

import logging
import time
from collections.abc import Callable
from typing import Final

from rollcast.learner.serving.registry import ActorRegistry
from rollcast.services.process.printable import printable

logger = logging.getLogger(__name__)

# The longest delay between two attempts of an actor is 5 s, and an attempt takes a moment.
_LINGER_S: Final = 7.0
# An actor that has been away for longer than several attempts has ended, or does not reach this machine.
_MISSING_S: Final = 30.0
_LOOK_S: Final = 0.05


def await_missing_actors(registry: ActorRegistry, *, may_end: Callable[[], bool]) -> None:
    """Waits up to 7 s until no actor is missing. Ignores actors that have been away for longer than 30 s.

    Args:
        registry: The actors.
        may_end: Returns True when the wait must end.
    """
    deadline = time.monotonic() + _LINGER_S
    if missing := registry.missing(_MISSING_S):
        logger.info(
            "training has ended: waiting up to %.0f s to tell the disconnected actors: %s",
            _LINGER_S,
            printable(", ".join(missing)),
        )
    while registry.missing(_MISSING_S) and not may_end():
        if time.monotonic() > deadline:
            return
        time.sleep(_LOOK_S)
