"""Sets how long a thread may keep the interpreter's lock while others wait for it."""

import sys
from typing import Final

_DEFAULT_S: Final = sys.getswitchinterval()
_THREAD_S: Final = 50e-6


def set_switch_interval(n_threads: int) -> None:
    """Sets `sys.setswitchinterval` for a number of threads that may want the lock: 5 ms up to 100, 0.1 s for 2,000.

    A thread that waits for the lock wakes up after each such interval, to ask for it. With 1,000 actors, so many
    threads woke up every 5 ms that the thread with the lock made no progress. More threads waited, and a learner on two
    cores stood still. The interval holds for the whole process: the last server that takes or loses a stream sets it.

    Args:
        n_threads: The number of threads.
    """
    sys.setswitchinterval(max(_DEFAULT_S, n_threads * _THREAD_S))
