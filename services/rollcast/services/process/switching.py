"""Sets the time for which a thread may keep the interpreter's lock while other threads wait for the lock."""

import sys
from typing import Final

_DEFAULT_S: Final = sys.getswitchinterval()
_THREAD_S: Final = 50e-6


def set_switch_interval(n_threads: int) -> None:
    """Sets the switch interval for a number of threads: 5 ms up to 100 threads, 0.1 s for 2,000 threads.

    A thread that waits for the lock wakes up after each interval and requests it. With 1,000 actors and an interval of
    5 ms, so many threads wake up that the thread with the lock makes no progress. A learner on two cores then stalls.
    The interval applies to the whole process. Each server sets it when it accepts or loses a stream.

    Args:
        n_threads: The number of threads.
    """
    sys.setswitchinterval(max(_DEFAULT_S, n_threads * _THREAD_S))
