"""Plays the threads of some work one at a time, in an order that is always the same, and counts locks and wake-ups.

rollcast's threads are real ones, but only one of them runs: when it waits, for a lock or a condition, the next one that
can go on does. When none can, the clock moves to the earliest deadline; otherwise it stands still. So nothing depends
on the machine, and nobody waits for anything.

    with Stage() as stage:
        queue = RolloutQueue(4)
        with stage.work.counting():
            queue.put(rollout, is_active=lambda: True)
    stage.work.counts["learner"]["locks", "learner.queueing.queue.RolloutQueue.offer"]
"""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FunctionType
from typing import Any, Self
from unittest.mock import patch

from tests.budgets.arrays import allocations_noticed, arrays_counted
from tests.budgets.work import OURS, Work, our_caller

_RealLock, _RealThread = threading.Lock, threading.Thread


class StuckError(Exception):
    """All threads wait, and none has a deadline."""


class _LeaveError(BaseException):
    """Ends a thread that waits when the stage is left."""


class _Part:
    """A thread that plays on a stage.

    Attributes:
        role: Its work counts for this role.
        baton: Held by nobody else while it plays.
        ready: Returns whether it may go on.
        deadline: The time at which it goes on in any case; None: never.
        is_done: True once it has ended.
    """

    def __init__(self, role: str) -> None:
        self.role = role
        self.baton = _RealLock()
        self.baton.acquire()
        self.ready: Callable[[], bool] = lambda: True
        self.deadline: float | None = None
        self.is_done = False


class Stage:
    """While it is entered, what rollcast makes of `threading` plays here, by the clock of the stage.

    Attributes:
        work: The work that is counted.
        now: The time of its clock.
        is_over: True once it was left: whoever waits leaves, too.
    """

    def __init__(self, role: str = "learner") -> None:
        self.work = Work(role)
        # Some constructors of ours keep the real clock.
        self.now = time.monotonic()
        self._main = self._playing = _Part(role)
        self._parts = [self._main]
        self._threads: list[threading.Thread] = []
        self._makes_thread = False
        self.is_over = False
        self._error: StuckError | None = None
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        self._undo.enter_context(arrays_counted(self.work))
        made = {
            "Lock": lambda: _Lock(self),
            "RLock": lambda: _RLock(self),
            "Condition": lambda lock=None: _Condition(self, lock),
            "Thread": self._make_thread,
        }
        for name, make in made.items():
            self._undo.enter_context(patch.object(threading, name, self._for_us(make, getattr(threading, name))))
        for name in ("monotonic", "perf_counter"):
            real, clock = getattr(time, name), self._for_us(lambda: self.now, getattr(time, name))
            self._undo.enter_context(patch.object(time, name, clock))
            for init in _with_default(real):
                defaults = tuple(clock if value is real else value for value in init.__defaults__ or ())
                named = {key: clock if value is real else value for key, value in (init.__kwdefaults__ or {}).items()}
                self._undo.enter_context(patch.object(init, "__defaults__", defaults))
                self._undo.enter_context(patch.object(init, "__kwdefaults__", named))
        sleep = self._for_us(lambda seconds: self.wait_until(lambda: False, seconds), time.sleep)
        self._undo.enter_context(patch.object(time, "sleep", sleep))
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        for part, thread in zip(self._parts[1:], self._threads, strict=True):
            if not part.is_done:
                part.baton.release()
            _RealThread.join(thread)
        self._undo.close()

    def spawn(self, play: Callable[[], None], *, role: str) -> None:
        """Starts a thread with a role."""
        before, self.work.role = self.work.role, role
        self._make_thread(target=play, daemon=True).start()
        self.work.role = before

    def rest(self) -> None:
        """Lets all others play until each of them waits."""
        me = self._playing
        self.wait_until(lambda: not any(self._may_play(part) for part in self._parts if part is not me))

    def pass_time(self, seconds: float) -> None:
        """Moves the clock, and lets those play whose deadline that was."""
        self.now += seconds
        self.rest()

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Lets others play until a condition is met; returns False if the time was over first."""
        me = self._playing
        me.ready = ready
        me.deadline = None if timeout_s is None else self.now + timeout_s
        self._pass_on(me)
        return ready()

    def begin(self, thread: threading.Thread) -> _Part:
        """Adds a thread, which begins to play when others wait."""
        part = _Part(self.work.role)
        self._parts.append(part)
        self._threads.append(thread)
        return part

    def play(self, part: _Part, run: Callable[[], None]) -> None:
        """Plays a part; called by its own thread."""
        part.baton.acquire()
        if self.is_over:
            return
        try:
            with allocations_noticed():
                sys.setprofile(self.work.profile)
                run()
        except _LeaveError:
            pass
        finally:
            sys.setprofile(None)
            part.is_done = True
            if not self.is_over:
                self._hand_over(self._following(part))

    def _pass_on(self, me: _Part) -> None:
        if self.is_over:
            raise _LeaveError
        following = self._following(me)
        if following is not me:
            self._hand_over(following)
            me.baton.acquire()
        if self.is_over:
            raise _LeaveError
        if self._error is not None and me is self._main:
            raise self._error

    def _hand_over(self, following: _Part) -> None:
        self._playing, self.work.role = following, following.role
        following.baton.release()

    def _following(self, part: _Part) -> _Part:
        """Returns who plays next: the next one, in the order in which they came, that can go on."""
        at = self._parts.index(part) + 1
        in_turn = [each for each in self._parts[at:] + self._parts[:at] if not each.is_done]
        for each in in_turn:
            if self._may_play(each):
                return each
        awaited = [each.deadline for each in in_turn if each.deadline is not None]
        if not awaited:
            self._error = StuckError(f"{len(in_turn)} threads wait for each other")
            return self._main
        self.now = min(awaited)
        return self._following(part)

    def _make_thread(self, *args: Any, **given: Any) -> "_Thread":
        # A thread has locks of its own, which are real ones.
        self._makes_thread = True
        try:
            return _Thread(self, *args, **given)
        finally:
            self._makes_thread = False

    def _for_us(self, ours: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that does one thing for rollcast, and another for everybody else."""

        def call(*args: Any, **given: Any) -> Any:
            is_real = self._makes_thread or our_caller("threading") is None
            return real(*args, **given) if is_real else ours(*args, **given)

        return call

    def _may_play(self, part: _Part) -> bool:
        is_late = part.deadline is not None and part.deadline <= self.now
        return not part.is_done and (is_late or part.ready())


def _with_default(value: object) -> list[FunctionType]:
    """Returns the constructors of ours that have a value as a default."""
    modules = [module for name, module in sys.modules.items() if name.startswith(OURS)]
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    made = [init for each in classes if isinstance(init := vars(each).get("__init__"), FunctionType)]
    return [
        init
        for init in made
        if any(each is value for each in (*(init.__defaults__ or ()), *(init.__kwdefaults__ or {}).values()))
    ]


class _Lock:
    """A lock as `threading` has it. Its taking counts, and so does the wake-up of who waits for it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.is_held = False
        self._n_waiting = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self.is_held:
            if not blocking:
                return False
            self._n_waiting += 1
            is_free = self._stage.wait_until(lambda: not self.is_held, None if timeout < 0 else timeout)
            self._n_waiting -= 1
            if not is_free:
                return False
        self.is_held = True
        _count(self._stage, "locks")
        return True

    def release(self) -> None:
        # A condition's wait that ends with the stage does not take its lock again.
        if not self.is_held and not self._stage.is_over:
            raise RuntimeError("release unlocked lock")
        self.is_held = False
        if self._n_waiting:
            _count(self._stage, "threads woken")

    def locked(self) -> bool:
        return self.is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _RLock(_Lock):
    """A lock that its holder may take again."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._holder: int | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._holder != threading.get_ident() and not super().acquire(blocking, timeout):
            return False
        self._holder = threading.get_ident()
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            super().release()


class _Condition:
    """A condition as `threading` has it, for one that is taken once."""

    def __init__(self, stage: Stage, lock: _Lock | None) -> None:
        self._stage = stage
        self._lock = _RLock(stage) if lock is None else lock
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiting: list[list[bool]] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        is_woken = [False]
        self._waiting.append(is_woken)
        self._lock.release()
        try:
            self._stage.wait_until(lambda: is_woken[0], timeout)
        finally:
            if not is_woken[0]:
                self._waiting.remove(is_woken)
        self._lock.acquire()
        return is_woken[0]

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = None if timeout is None else self._stage.now + timeout
        while not (result := predicate()):
            left = None if deadline is None else deadline - self._stage.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        assert self._lock.locked(), "cannot notify on un-acquired lock"
        for is_woken in self._waiting[:n]:
            is_woken[0] = True
            _count(self._stage, "threads woken")
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class _Thread(_RealThread):
    """A thread that plays on a stage."""

    def __init__(self, stage: Stage, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._stage = stage
        self._part: _Part | None = None

    def start(self) -> None:
        self._part = self._stage.begin(self)
        super().start()

    def run(self) -> None:
        self._stage.play(self._part, super().run)

    def join(self, timeout: float | None = None) -> None:
        if self._stage.wait_until(lambda: self._part.is_done, timeout):
            super().join()

    def is_alive(self) -> bool:
        return self._part is not None and not self._part.is_done


def _count(stage: Stage, kind: str) -> None:
    site = our_caller("threading")
    if site is not None:
        stage.work.add(kind, site)
