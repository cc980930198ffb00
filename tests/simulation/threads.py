"""The names of `threading` and `time` for tasks of a scheduler: locks, conditions, events, threads, clocks."""

import contextlib
import math
import queue
import random
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import greenlet  # type: ignore[import-untyped]

from tests.simulation.scheduler import READY, Process, Scheduler, Task

_now: Scheduler | None = None
_driver = Process("driver")
_get_ident = threading.get_ident


def scheduler() -> Scheduler:
    """Returns the scheduler of this schedule."""
    assert _now is not None
    return _now


def process() -> Process:
    """Returns the process whose task runs."""
    sim = scheduler()
    return sim.current.process if sim.current is not None else _driver


class Lock:
    """A `threading.Lock`."""

    __slots__ = ("_is_held", "_waiting")

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: deque[Task] | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        sim = _now
        if sim is None:
            assert not self._is_held, "nobody can release it outside of a schedule"
            self._is_held = True
            return True
        if sim.is_over:
            raise greenlet.GreenletExit
        if READY:
            sim.pause()
        if not self._is_held:
            self._is_held = True
            return True
        if not blocking or timeout == 0:
            return False
        return self._wait(sim, math.inf if timeout < 0 else sim.now + timeout)

    def _wait(self, sim: Scheduler, deadline: float) -> bool:
        task = sim.current
        assert task is not None, "the driver waits for a lock"
        if self._waiting is None:
            self._waiting = deque()
        while True:
            self._waiting.append(task)
            was_woken = sim.park(deadline)
            if not was_woken and task in self._waiting:
                self._waiting.remove(task)
            if not self._is_held:
                self._is_held = True
                return True
            if not was_woken:
                return False

    def release(self) -> None:
        sim = _now
        if not self._is_held and not (sim is not None and sim.is_over):
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        if sim is None:
            return
        if self._waiting:
            sim.wake(self._waiting.popleft())
        if READY:
            sim.pause()

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class RLock(Lock):
    """A `threading.RLock`."""

    __slots__ = ("_count", "_owner")

    def __init__(self) -> None:
        super().__init__()
        self._owner: Task | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        current = None if _now is None else _now.current
        if self._count and self._owner is current:
            self._count += 1
            return True
        if not Lock.acquire(self, blocking, timeout):
            return False
        self._owner, self._count = current, 1
        return True

    def release(self) -> None:
        self._count -= 1
        if not self._count:
            self._owner = None
            Lock.release(self)

    def acquire_again(self, count: int) -> None:
        Lock.acquire(self)
        self._owner, self._count = scheduler().current, count


class Condition:
    """A `threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = RLock() if lock is None else lock
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiting: deque[Task] = deque()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._lock.locked():
            raise RuntimeError("cannot wait on un-acquired lock")
        sim = scheduler()
        task = sim.current
        assert task is not None, "the driver waits on a condition"
        deadline = math.inf if timeout is None else sim.now + max(0.0, timeout)
        self._waiting.append(task)
        # Whoever has the lock next may notify at once, so the wait begins before the lock is let go of.
        count = _let_go(self._lock, sim)
        try:
            was_woken = task not in self._waiting or sim.park(deadline)
        finally:
            if task in self._waiting:
                self._waiting.remove(task)
                was_woken = False
            if isinstance(self._lock, RLock):
                self._lock.acquire_again(count)
            else:
                self._lock.acquire()
        return was_woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        sim = scheduler()
        deadline = None if timeout is None else sim.now + timeout
        while not (result := predicate()):
            if deadline is None:
                self.wait()
            elif deadline - sim.now <= 0:
                break
            else:
                self.wait(deadline - sim.now)
        return result

    def notify(self, n: int = 1) -> None:
        if not self._lock.locked():
            raise RuntimeError("cannot notify on un-acquired lock")
        if not self._waiting:
            return
        sim = scheduler()
        for _ in range(min(n, len(self._waiting))):
            sim.wake(self._waiting.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


def _let_go(lock: Lock, sim: Scheduler) -> int:
    """Releases a lock without a switch point; returns how often it was held."""
    count = 1
    if isinstance(lock, RLock):
        count, lock._count, lock._owner = lock._count, 0, None
    lock._is_held = False
    if lock._waiting:
        sim.wake(lock._waiting.popleft())
    return count


class Event:
    """A `threading.Event`."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        sim = _now
        if sim is None:
            return
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            sim.wake(task)
        sim.pause()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        sim = scheduler()
        sim.pause()
        if self._is_set and not sim.is_over:
            return True
        if timeout is not None and timeout <= 0:
            return False
        task = sim.current
        assert task is not None, "the driver waits for an event"
        self._waiting.append(task)
        sim.park(math.inf if timeout is None else sim.now + timeout)
        if task in self._waiting:
            self._waiting.remove(task)
        return self._is_set


class Thread:
    """A `threading.Thread`."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        del group
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self._target = target
        self._args, self._kwargs = args, dict(kwargs or {})
        self._task: Task | None = None

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.number

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        sim = scheduler()
        self._task = sim.spawn(process(), self.name, self.run)
        sim.pause()

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_done

    def join(self, timeout: float | None = None) -> None:
        sim, task = scheduler(), self._task
        sim.pause()
        if sim.is_over:
            raise greenlet.GreenletExit
        if task is None or task.is_done or (timeout is not None and timeout <= 0):
            return
        assert sim.current is not None, "the driver joins a thread"
        task.joiners.append(sim.current)
        sim.park(math.inf if timeout is None else sim.now + timeout)


def get_ident() -> int:
    """Returns the number of the task that runs."""
    current = None if _now is None else _now.current
    return _get_ident() if current is None else current.number


_TIME_OF_DAY_S: Final = 1.7e9
_JUMP_S: Final = 12 * 3600.0

# Random numbers for what must not be guessed, and the seed that they still need for this schedule: few schedules need
# any, and a seed costs as much as ten switch points.
_drawn = random.Random(0)
_seed: int | None = None


def _secrets() -> random.Random:
    global _seed  # noqa: PLW0603 - one schedule at a time
    if _seed is not None:
        _drawn.seed(_seed)
        _seed = None
    return _drawn


def _clock(real: Callable[[], float]) -> Callable[[], float]:
    return lambda: real() if _now is None else _now.now


def _time_of_day(real: Callable[[], float]) -> Callable[[], float]:
    """Returns a clock that jumps at each look, as when an administrator or NTP sets it: nobody may wait by it."""
    return lambda: real() if _now is None else _TIME_OF_DAY_S + _now.now + _secrets().uniform(-_JUMP_S, _JUMP_S)


def install() -> None:
    """Puts the simulator's threads, clocks and secrets in the place of Python's, for the rest of this process.

    Call it after the import of other libraries, whose threads stay real, and before that of rollcast, whose modules
    have clocks and locks from their import on.

    Raises:
        RuntimeError: rollcast was imported already.
    """
    early = [
        name for name in sys.modules if name.startswith(("rollcast.services", "rollcast.actor", "rollcast.learner"))
    ]
    if early:
        raise RuntimeError(f"{early[0]} was imported before the simulator; expected a process of its own")
    for name, value in {
        "Lock": Lock,
        "_allocate_lock": Lock,
        "RLock": RLock,
        "Condition": Condition,
        "Event": Event,
        "Thread": Thread,
        "get_ident": get_ident,
    }.items():
        setattr(threading, name, value)
    time.monotonic = _clock(time.monotonic)
    time.perf_counter = _clock(time.perf_counter)
    time.time = _time_of_day(time.time)
    time.sleep = lambda seconds: scheduler().sleep(float(seconds))
    queue.SimpleQueue = queue._PySimpleQueue  # type: ignore[attr-defined,misc]
    setattr(queue, "time", time.monotonic)  # noqa: B010 - by its import it has Python's clock
    for name, draw in {
        "randbelow": lambda n: _secrets().randrange(n),
        "token_bytes": lambda n: _secrets().randbytes(n),
        "token_hex": lambda n: _secrets().randbytes(n).hex(),
    }.items():
        setattr(secrets, name, draw)
    sys.unraisablehook = _told_unless_ended


def _told_unless_ended(unraisable: Any) -> None:
    """Says nothing of generators that are left behind by tasks which were ended."""
    if not isinstance(unraisable.exc_value, greenlet.GreenletExit):
        sys.__unraisablehook__(unraisable)


@contextlib.contextmanager
def simulated(sim: Scheduler, seed: int) -> Iterator[None]:
    """Lets a scheduler decide who runs while the body does."""
    global _now, _seed  # noqa: PLW0603 - one schedule at a time
    random.seed(seed)
    _seed = seed
    _now = sim
    try:
        yield
    finally:
        try:
            sim.close()
        finally:
            _now = None
