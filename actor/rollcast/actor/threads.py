"""Limits the threads of an actor's arithmetic."""

import sys

from threadpoolctl import threadpool_limits


def limit_threads(n_threads: int) -> None:
    """Limits the linear algebra library, and torch if it is loaded, to `n_threads` threads in this process.

    Actors share a machine: more than one thread each makes all of them slower (small matrices, spinning waits).
    """
    threadpool_limits(limits=n_threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(n_threads)
