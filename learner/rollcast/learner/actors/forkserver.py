"""Starts the process from which local actors are forked. Does not import torch or grpc into the learner's process."""

from multiprocessing import forkserver

from rollcast.services.process.interrupts import interrupts_held_back
from rollcast.services.process.socket_paths import short_temporary_paths

# The module that it imports once, so that every actor starts in milliseconds.
PRELOAD = ("rollcast.actor.acting.preloaded",)


def start_forkserver() -> None:
    """Starts the forkserver, so that it imports its modules while the learner imports other modules. Idempotent."""
    forkserver.set_forkserver_preload(list(PRELOAD))
    with interrupts_held_back(), short_temporary_paths():
        forkserver.ensure_running()
