"""How two processes wait for each other: they look at a number in shared memory for a moment, then they sleep."""

import enum
import os
import platform
import select
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

# int64 words for each worker: what the parent writes and what the worker writes, on cache lines of their own.
N_WORDS = 16

# How long to look before sleeping. A wake-up costs some 50 us here: looking for twice as long loses little.
_SPIN_S = 100e-6
# Looks between two calls of sched_yield: where there are more processes than cores, the one waited for needs this core.
_LOOKS = 16
# Every so often a wait that has been long of late is tried with looking again.
_RETRY_EVERY = 32
# A process that sleeps looks up this often. What it waits for is signalled; this is for what cannot signal any more.
_LOOK_UP_S = 1.0

# Stores become visible in their order on x86 only; elsewhere the bell's system calls order them, so it always rings.
_STORES_IN_ORDER = platform.machine() in {"x86_64", "AMD64"}


class Word(enum.IntEnum):
    """Where a worker's words are."""

    COMMAND = 0  # number of the newest command
    OPERATION = 1  # what it is
    PARENT_SLEEPS = 2
    DONE = 8  # number of the newest command that is done
    RESULT = 9
    CHILD_SLEEPS = 10
    PROGRESS = 11  # index of the environment that is busy


class Operation(enum.IntEnum):
    """What a worker is to do."""

    STEP = 0
    RESET = 1
    CALL = 2
    SET_ATTR = 3
    CLOSE = 4


class Result(enum.IntEnum):
    """What came of it."""

    NOTHING_TO_ADD = 0
    MESSAGE = 1  # comes through the pipe
    FAILED = 2  # the report comes through the pipe


class PeerGoneError(Exception):
    """The other process has ended."""


class Bell:
    """One side's view of one number that the other side counts up, and of the number it counts up itself.

    Args:
        words: All words.
        connection: Wakes whoever sleeps; its end shows that the other process has ended.
        heard: Index of the word that the other side writes.
        told: Index of the word that this side writes.
        self_sleeps: Index of the word that says that this side sleeps.
        peer_sleeps: The same of the other side.
        sentinel: Becomes readable when the other process has ended; None: the connection alone tells. Whatever an
            environment has started may keep the connection open for longer than its process lives.
    """

    def __init__(
        self,
        words: memoryview,
        connection: Connection,
        *,
        heard: int,
        told: int,
        self_sleeps: int,
        peer_sleeps: int,
        sentinel: int | None = None,
    ) -> None:
        self._words = words
        self._connection = connection
        self._heard = heard
        self._told = told
        self._self_sleeps = self_sleeps
        self._peer_sleeps = peer_sleeps
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._sentinel = sentinel
        if sentinel is not None:
            self._poll.register(sentinel, select.POLLIN)
        self._fence = threading.Lock()
        self._usual_wait_s = 0.0
        self._n_waits = 0

    def tell(self, number: int) -> None:
        """Publishes a number, after everything that was written to the shared memory before."""
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
            PeerGoneError: It has ended.
        """
        try:
            os.write(self._connection.fileno(), b"\0")
        except OSError as error:
            raise PeerGoneError from error

    def hear(self, seen: int, timeout_s: float | None = None) -> bool:
        """Waits until the other side's number is not `seen` any more.

        Args:
            seen: The number that is known already.
            timeout_s: How long at most; None: for ever.

        Returns:
            Whether it has changed.

        Raises:
            PeerGoneError: The other process has ended, and it has not.
        """
        words, heard = self._words, self._heard
        if _STORES_IN_ORDER and words[heard] != seen:
            return True
        start = time.perf_counter()
        if _STORES_IN_ORDER and self._worth_spinning() and self._spin(seen, start + _SPIN_S):
            self._learn(time.perf_counter() - start)
            return True
        changed = self._sleep(seen, None if timeout_s is None else start + timeout_s)
        self._learn(time.perf_counter() - start)
        return changed

    def has_changed(self, seen: int) -> bool:
        """Whether the other side's number is not `seen` any more."""
        return bool(self._words[self._heard] != seen)

    def prepare_sleep(self, poll: select.poll) -> None:
        """Asks to be rung, and adds to `poll` what is heard then."""
        self._words[self._self_sleeps] = 1
        self._order_stores_before_loads()
        poll.register(self._connection.fileno(), select.POLLIN)
        if self._sentinel is not None:
            poll.register(self._sentinel, select.POLLIN)

    def end_sleep(self) -> None:
        """Asks no longer to be rung."""
        self._words[self._self_sleeps] = 0

    def _order_stores_before_loads(self) -> None:
        """A full memory fence: the atomic instruction of a lock that nobody else holds, and so never waits for."""
        self._fence.acquire()
        self._fence.release()

    def _worth_spinning(self) -> bool:
        self._n_waits += 1
        return self._usual_wait_s < _SPIN_S or self._n_waits % _RETRY_EVERY == 0

    def _learn(self, waited_s: float) -> None:
        # One long wait, an update of the policy say, is not to make the next ones slow.
        self._usual_wait_s += 0.1 * (min(waited_s, 4 * _SPIN_S) - self._usual_wait_s)

    def _spin(self, seen: int, deadline: float) -> bool:
        words, heard = self._words, self._heard
        while time.perf_counter() < deadline:
            for _ in range(_LOOKS):
                if words[heard] != seen:
                    return True
            os.sched_yield()
        return False

    def _sleep(self, seen: int, deadline: float | None) -> bool:
        words, heard = self._words, self._heard
        words[self._self_sleeps] = 1
        self._order_stores_before_loads()
        try:
            while not (_STORES_IN_ORDER and words[heard] != seen):
                left_s = _LOOK_UP_S if deadline is None else min(_LOOK_UP_S, deadline - time.perf_counter())
                if left_s <= 0:
                    return False
                gone = self.take_event(left_s)
                if words[heard] != seen:
                    return True
                if gone:
                    raise PeerGoneError
            return True
        finally:
            words[self._self_sleeps] = 0

    def take_event(self, timeout_s: float) -> bool:
        """Sleeps until something happens, and takes what has been rung; whether nobody will ring any more."""
        readable = [descriptor for descriptor, _ in self._poll.poll(timeout_s * 1000)]
        gone = self._sentinel in readable
        if self._connection.fileno() in readable:
            try:
                gone = not os.read(self._connection.fileno(), 64) or gone
            except OSError:
                gone = True
        return gone


def hear_any(bells: Sequence[tuple[Bell, int]], timeout_s: float | None) -> list[int]:
    """Waits until one of several numbers has changed, or one of the processes has ended.

    Args:
        bells: Each with the number that is known already.
        timeout_s: How long at most; None: for ever.

    Returns:
        The places of those, in `bells`; none if time ran out.
    """
    start = time.perf_counter()
    while _STORES_IN_ORDER and time.perf_counter() < start + _SPIN_S:
        if changed := _changed(bells):
            return changed
        os.sched_yield()
    poll = select.poll()
    for bell, _ in bells:
        bell.prepare_sleep(poll)
    try:
        while True:
            # Elsewhere than on x86 a bell waits in the pipe for whatever has changed.
            if _STORES_IN_ORDER and (changed := _changed(bells)):
                return changed
            left_s = _LOOK_UP_S if timeout_s is None else min(_LOOK_UP_S, start + timeout_s - time.perf_counter())
            if left_s <= 0:
                return []
            if poll.poll(left_s * 1000):
                # A bell that was rung too late for an earlier wait says nothing about this one.
                gone = [place for place, (bell, _) in enumerate(bells) if bell.take_event(0.0)]
                if told := sorted({*gone, *_changed(bells)}):
                    return told
    finally:
        for bell, _ in bells:
            bell.end_sleep()


def _changed(bells: Sequence[tuple[Bell, int]]) -> list[int]:
    return [place for place, (bell, seen) in enumerate(bells) if bell.has_changed(seen)]


def parent_bell(words: memoryview, worker: int, connection: Connection, sentinel: int) -> Bell:
    """The parent's view of a worker."""
    base = worker * N_WORDS
    return Bell(
        words,
        connection,
        heard=base + Word.DONE,
        told=base + Word.COMMAND,
        self_sleeps=base + Word.PARENT_SLEEPS,
        peer_sleeps=base + Word.CHILD_SLEEPS,
        sentinel=sentinel,
    )


def child_bell(words: memoryview, worker: int, connection: Connection) -> Bell:
    """A worker's view of the parent."""
    base = worker * N_WORDS
    return Bell(
        words,
        connection,
        heard=base + Word.COMMAND,
        told=base + Word.DONE,
        self_sleeps=base + Word.CHILD_SLEEPS,
        peer_sleeps=base + Word.PARENT_SLEEPS,
    )
