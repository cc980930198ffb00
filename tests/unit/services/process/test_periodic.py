import threading

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
