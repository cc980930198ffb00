"""Synchronises two processes: each polls a number in shared memory for a moment, then sleeps."""

import enum
import os
import platform
import select
import threading
import time
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection

# int64 words for each child. The parent's and the child's words lie on separate cache lines.
N_WORDS = 16

# Seconds of polling before sleeping. A wake-up costs about 50 us, so polling for twice as long loses little.
_SPIN_S = 100e-6
# Polls between two calls of sched_yield: with more processes than cores, the awaited process may need this core.
_LOOKS = 16
# After long waits, one wait in this number polls again.
_RETRY_EVERY = 32
# A sleeping process checks this often, in case the other side can no longer signal.
_LOOK_UP_S = 1.0

# Only x86 makes stores visible in order. Elsewhere the doorbell's system calls order them, so it always rings.
_STORES_IN_ORDER = platform.machine() in {"x86_64", "AMD64"}


class WordIndex(enum.IntEnum):
    """The indices of a child's words in shared memory."""

    COMMAND = 0  # number of the newest command
    OPERATION = 1  # the newest command's operation
    PARENT_SLEEPS = 2
    DONE = 8  # number of the newest finished command
    RESULT = 9
    CHILD_SLEEPS = 10
    PROGRESS = 11  # index of the environment that is busy


class Operation(enum.IntEnum):
    """The operations that a child executes."""

    STEP = 0
    RESET = 1
    CALL = 2
    SET_ATTR = 3
    CLOSE = 4


class Result(enum.IntEnum):
    """The results of an operation."""

    NOTHING_TO_ADD = 0
    MESSAGE = 1  # comes through the pipe
    FAILED = 2  # the report comes through the pipe


class PeerGoneError(Exception):
    """The other process has ended."""


class Doorbell:
    """One side of a pair of counters in shared memory. Each side increments its counter, and waits for the other's.

    Args:
        words: The words of all children.
        child: The child's number.
        connection: Wakes a sleeping side. Its end of file shows that the other process has ended.
        sentinel: On the parent's side: becomes readable when the child has ended. The end of file is not enough,
            because a process started by an environment may keep the connection open. None on the child's side.
    """

    def __init__(
        self,
        words: memoryview,
        child: int,
        connection: Connection,
        sentinel: int | None = None,
    ) -> None:
        self._words = words
        self._connection = connection
        self._sentinel = sentinel
        base = child * N_WORDS
        mine, others = base + WordIndex.COMMAND, base + WordIndex.DONE
        my_sleep, others_sleep = base + WordIndex.PARENT_SLEEPS, base + WordIndex.CHILD_SLEEPS
        if sentinel is None:
            mine, others, my_sleep, others_sleep = others, mine, others_sleep, my_sleep
        # The counters that this side writes and waits for; the words that are 1 while a side sleeps.
        self._told, self._heard = mine, others
        self._self_sleeps, self._peer_sleeps = my_sleep, others_sleep
        self._fence = threading.Lock()
        self._usual_wait_s = 0.0
        self._n_waits = 0

    def tell(self, number: int) -> None:
        """Publishes a number, after all earlier writes to the shared memory."""
        words = self._words
        words[self._told] = number
        if _STORES_IN_ORDER:
            self._order_stores_before_loads()
            if not words[self._peer_sleeps]:
                return
        self.ring()

    def ring(self) -> None:
        """Wakes the other side.

        Raises:
            PeerGoneError: If the other process has ended.
        """
        try:
            os.write(self._connection.fileno(), b"\0")
        except OSError as error:
            raise PeerGoneError from error

    def hear(self, seen: int, timeout_s: float | None = None) -> bool:
        """Waits until the other side's number differs from `seen`.

        Args:
            seen: The last known number.
            timeout_s: The longest wait, in seconds; None: no limit.

        Returns:
            True: the number has changed. False: `timeout_s` has passed.

        Raises:
            PeerGoneError: If the other process has ended and the number has not changed.
        """
        words, heard = self._words, self._heard
        if _STORES_IN_ORDER and words[heard] != seen:
            return True
        start = time.perf_counter()
        if _STORES_IN_ORDER and self._worth_spinning() and self._spin(seen, start + _SPIN_S):
            self._learn(time.perf_counter() - start)
            return True
        is_told = bool(_sleep([(self, seen)], None if timeout_s is None else start + timeout_s))
        self._learn(time.perf_counter() - start)
        if is_told and not self.has_changed(seen):
            raise PeerGoneError
        return is_told

    def has_changed(self, seen: int) -> bool:
        """Returns True if the other side's number differs from `seen`."""
        return bool(self._words[self._heard] != seen)

    def prepare_sleep(self, poll: "select.poll") -> None:
        """Asks the other side to ring, and registers the descriptors in `poll`."""
        self._words[self._self_sleeps] = 1
        self._order_stores_before_loads()
        poll.register(self._connection.fileno(), select.POLLIN)
        if self._sentinel is not None:
            poll.register(self._sentinel, select.POLLIN)

    def end_sleep(self) -> None:
        """Informs the other side that no ring is needed."""
        self._words[self._self_sleeps] = 0

    def _order_stores_before_loads(self) -> None:
        """Executes a full memory fence, with the atomic instruction of an uncontended lock."""
        self._fence.acquire()
        self._fence.release()

    def _worth_spinning(self) -> bool:
        self._n_waits += 1
        return self._usual_wait_s < _SPIN_S or self._n_waits % _RETRY_EVERY == 0

    def _learn(self, waited_s: float) -> None:
        # Clipped, so that one long wait (an update of the policy) does not slow the next ones.
        self._usual_wait_s += 0.1 * (min(waited_s, 4 * _SPIN_S) - self._usual_wait_s)

    def _spin(self, seen: int, deadline: float) -> bool:
        words, heard = self._words, self._heard
        while time.perf_counter() < deadline:
            for _ in range(_LOOKS):
                if words[heard] != seen:
                    return True
            os.sched_yield()
        return False

    def take_event(self, readable: Collection[int]) -> bool:
        """Reads the byte of a ring, if any, from the readable descriptors.

        Returns:
            True if the other process has ended.
        """
        has_ended = self._sentinel in readable
        if self._connection.fileno() in readable:
            try:
                has_ended = not os.read(self._connection.fileno(), 64) or has_ended
            except OSError:
                has_ended = True
        return has_ended


def hear_any(doorbells: Sequence[tuple[Doorbell, int]], timeout_s: float | None) -> list[int]:
    """Waits until one of several numbers has changed, or one of the processes has ended.

    Args:
        doorbells: Each doorbell with the last known number.
        timeout_s: The longest wait, in seconds; None: no limit.

    Returns:
        The indices of the doorbells that changed or whose process has ended; empty after `timeout_s`.
    """
    start = time.perf_counter()
    while _STORES_IN_ORDER and time.perf_counter() < start + _SPIN_S:
        if changed := _changed(doorbells):
            return changed
        os.sched_yield()
    return _sleep(doorbells, None if timeout_s is None else start + timeout_s)


def _sleep(doorbells: Sequence[tuple[Doorbell, int]], deadline: float | None) -> list[int]:
    """Sleeps until a number has changed or a process has ended; returns the indices, empty after the deadline."""
    poll = select.poll()
    for doorbell, _ in doorbells:
        doorbell.prepare_sleep(poll)
    try:
        while True:
            # On machines other than x86, every change has a byte in the pipe.
            if _STORES_IN_ORDER and (changed := _changed(doorbells)):
                return changed
            left_s = _LOOK_UP_S if deadline is None else min(_LOOK_UP_S, deadline - time.perf_counter())
            if left_s <= 0:
                return []
            readable = {descriptor for descriptor, _ in poll.poll(left_s * 1000)}
            # A byte may belong to an earlier wait, so the numbers decide.
            ended = [place for place, (doorbell, _) in enumerate(doorbells) if doorbell.take_event(readable)]
            if told := sorted({*ended, *_changed(doorbells)}):
                return told
    finally:
        for doorbell, _ in doorbells:
            doorbell.end_sleep()


def _changed(doorbells: Sequence[tuple[Doorbell, int]]) -> list[int]:
    return [place for place, (doorbell, seen) in enumerate(doorbells) if doorbell.has_changed(seen)]
