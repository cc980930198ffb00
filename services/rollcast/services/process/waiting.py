"""Waits for a state with a deadline, for a caller that may leave before."""

import math
import threading
import time
from collections.abc import Callable
from typing import Final

# The longest time between two calls of `is_active`, in seconds; contracts promise one a second. Hundreds of streams may
# wait, so this is what waiting costs.
LOOK_S: Final = 0.9


def wait_for(
    condition: threading.Condition,
    predicate: Callable[[], object],
    *,
    until: float = math.inf,
    is_active: Callable[[], bool],
) -> bool:
    """Waits until a state is there, the deadline has passed, or the caller has gone.

    Args:
        condition: Notified when the state changes. The caller holds its lock, which is released while waiting.
        predicate: Returns whether the state is there. Called at the beginning, and after every wake-up.
        until: The deadline, by `time.monotonic`.
        is_active: Returns whether the caller is still there. Called before every wait, with the lock held, so at least
            every second.

    Returns:
        True if the state is there.
    """
    while not predicate():
        if not is_active():
            return False
        left_s = until - time.monotonic()
        if left_s <= 0:
            return False
        condition.wait(min(left_s, LOOK_S))
    return True


def acquire(
    lock: threading.Lock, *, is_active: Callable[[], bool], look_s: Callable[[], float] = lambda: LOOK_S
) -> bool:
    """Takes a lock, which another thread may release; waits until it has it, or the caller has gone.

    One waiting thread is woken by a lock for the price of a release, without the turn that a condition's lock costs.

    Args:
        lock: The lock.
        is_active: Returns whether the caller is still there. Called before every wait.
        look_s: Returns the longest time until the next call of `is_active`, in seconds. Called before every wait.

    Returns:
        True if the lock is held now.
    """
    if lock.acquire(blocking=False):
        return True
    while is_active():
        if lock.acquire(timeout=look_s()):
            return True
    return False
