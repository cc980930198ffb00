"""Waits for a state until a deadline, or until the caller disconnects."""

import math
import threading
import time
from collections.abc import Callable
from typing import Final

# The longest time between two calls of `is_active`, in seconds. The contracts promise one call per second. Hundreds of
# streams may wait, so these calls are the cost of waiting.
LOOK_S: Final = 0.9


def wait_for(
    condition: threading.Condition,
    predicate: Callable[[], object],
    *,
    until: float = math.inf,
    is_active: Callable[[], bool],
) -> bool:
    """Waits until the predicate is true, the deadline has passed, or the caller no longer waits.

    Args:
        condition: Notified when the state changes. The caller holds its lock, which is released while waiting.
        predicate: Returns whether the wait is over. Called at the beginning, and after every wake-up.
        until: The deadline, by `time.monotonic`.
        is_active: Returns whether the caller still waits. Called before every wait, with the lock held, so at least
            every second.

    Returns:
        True if the predicate is true.
    """
    while not predicate():
        if not is_active():
            return False
        left_s = until - time.monotonic()
        if left_s <= 0:
            return False
        condition.wait(min(left_s, LOOK_S))
    return True


def acquire(lock: threading.Lock, *, is_active: Callable[[], bool]) -> bool:
    """Acquires a lock that another thread may release. Waits until it has the lock, or the caller no longer waits.

    A lock wakes a waiting thread more cheaply than a condition, because a condition has a second lock.

    Args:
        lock: The lock.
        is_active: Returns whether the caller still waits. Called at least every `LOOK_S`.

    Returns:
        True if the lock is held now.
    """
    if lock.acquire(blocking=False):
        return True
    while is_active():
        if lock.acquire(timeout=LOOK_S):
            return True
    return False
