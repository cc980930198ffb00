import math
import threading
import time
from collections.abc import Callable

import pytest

from rollcast.services.process import waiting
from tests.processes import DEADLINE_S, wait_until


def nobody_asks() -> bool:
    raise AssertionError("nothing is waited for")


class Caller:
    """A caller that may go; counts how often it was asked whether it is there."""

    def __init__(self) -> None:
        self.is_there = True
        self.n_asked = 0

    def is_active(self) -> bool:
        self.n_asked += 1
        return self.is_there


class Waiter:
    """A thread that waits."""

    def __init__(self, wait: Callable[[], bool]) -> None:
        self.result: bool | None = None

        def run() -> None:
            self.result = wait()

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def join(self) -> bool | None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self.result


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets nothing but a notification end a wait."""
    monkeypatch.setattr(waiting, "LOOK_S", 10 * DEADLINE_S)


def test_a_state_that_is_there_is_waited_for_by_nobody():
    condition, lock = threading.Condition(), threading.Lock()
    with condition:
        assert waiting.wait_for(condition, lambda: True, until=-math.inf, is_active=nobody_asks)
    assert waiting.acquire(lock, is_active=nobody_asks)
    assert lock.locked()


def test_a_deadline_that_has_passed_ends_the_wait():
    condition = threading.Condition()
    with condition:
        assert not waiting.wait_for(condition, lambda: False, until=time.monotonic(), is_active=lambda: True)


def test_a_deadline_ends_a_wait_that_nobody_notifies(no_looks: None):
    condition, caller = threading.Condition(), Caller()
    with condition:
        until = time.monotonic() + 0.01
        assert not waiting.wait_for(condition, lambda: False, until=until, is_active=caller.is_active)
        assert time.monotonic() >= until


def test_a_notification_wakes_it_and_nothing_else_does(no_looks: None):
    condition, caller = threading.Condition(), Caller()
    state: list[int] = []

    def wait() -> bool:
        with condition:
            return waiting.wait_for(condition, lambda: len(state) == 2, is_active=caller.is_active)

    waiter = Waiter(wait)
    for n_asked in (1, 2):
        wait_until(lambda n_asked=n_asked: caller.n_asked == n_asked, "the wait")
        with condition:  # free: the waiting thread has let go of it
            state.append(n_asked)
            condition.notify()
    assert waiter.join() is True
    assert caller.n_asked == 2, "once before each wait"


def test_a_lock_that_is_released_wakes_it_and_nothing_else_does(no_looks: None):
    lock, caller = threading.Lock(), Caller()
    lock.acquire()
    waiter = Waiter(lambda: waiting.acquire(lock, is_active=caller.is_active))
    wait_until(lambda: caller.n_asked == 1, "the wait")
    lock.release()
    assert waiter.join() is True
    assert lock.locked()
    assert caller.n_asked == 1


def test_a_caller_that_goes_is_noticed_without_a_notification(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting, "LOOK_S", 0.01)
    condition, lock = threading.Condition(), threading.Lock()
    lock.acquire()
    callers = [Caller(), Caller()]

    def wait() -> bool:
        with condition:
            return waiting.wait_for(condition, lambda: False, is_active=callers[0].is_active)

    waiters = [Waiter(wait), Waiter(lambda: waiting.acquire(lock, is_active=callers[1].is_active))]
    for caller, waiter in zip(callers, waiters, strict=True):
        wait_until(lambda caller=caller: caller.n_asked > 2, "some looks")
        caller.is_there = False
        assert waiter.join() is False


def test_a_caller_that_has_gone_does_not_wait(no_looks: None):
    condition, lock = threading.Condition(), threading.Lock()
    lock.acquire()
    with condition:
        assert not waiting.wait_for(condition, lambda: False, is_active=lambda: False)
    assert not waiting.acquire(lock, is_active=lambda: False)
