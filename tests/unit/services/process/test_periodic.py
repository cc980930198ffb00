import threading
from types import SimpleNamespace

import pytest

from rollcast.services.process import periodic
from rollcast.services.process.periodic import PeriodicThread
from tests.processes import wait_until


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_calls_at_once_and_then_again_and_again_until_it_is_closed():
    calls: list[str] = []
    with PeriodicThread(lambda: calls.append(threading.current_thread().name), 0.02, name="calls"):
        wait_until(lambda: len(calls) > 4, "calls")
    n_calls = len(calls)
    assert set(calls) == {"rollcast-calls"}
    assert "rollcast-calls" not in names()
    assert len(calls) == n_calls


def test_a_long_interval_does_not_keep_it_from_ending():
    with PeriodicThread(lambda: None, 3600.0, name="seldom"):
        pass
    assert "rollcast-seldom" not in names()


def test_its_function_can_end_it():
    calls: list[int] = []

    def call() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            thread.stop()

    thread = PeriodicThread(call, 0.01, name="thrice")
    with thread:
        wait_until(lambda: "rollcast-thrice" not in names(), "the thread's end")
    assert calls == [0, 1, 2]


class FullWait(threading.Event):
    """An event whose waits take just their time, by a clock that stands still otherwise."""

    now = 1000.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        FullWait.now += max(0.0, timeout)
        return self.is_set()


@pytest.mark.parametrize("interval_s", [0.1, 1 / 3, 0.7])
def test_a_clock_that_cannot_tell_the_rest_of_an_interval_goes_on(monkeypatch: pytest.MonkeyPatch, interval_s: float):
    """Sums of floats fall short of the next call by less than the clock can tell."""
    times: list[float] = []

    def call() -> None:
        times.append(FullWait.now)
        if len(times) == 100:
            thread.stop()

    monkeypatch.setattr(FullWait, "now", 1000.0)
    monkeypatch.setattr(periodic, "time", SimpleNamespace(monotonic=lambda: FullWait.now))
    monkeypatch.setattr(periodic, "threading", SimpleNamespace(Event=FullWait, Thread=threading.Thread))
    thread = PeriodicThread(call, interval_s, name="exact")
    with thread:
        wait_until(lambda: "rollcast-exact" not in names(), "the thread's end")
    assert times == pytest.approx([1000.0 + n * interval_s for n in range(100)])
