import threading

from rollcast.learner.training.history_sampler import HistorySampler
from tests.processes import wait_until


def test_samples_at_once_and_then_again_and_again_until_it_is_closed():
    calls: list[str] = []
    with HistorySampler(lambda: calls.append(threading.current_thread().name), interval_s=0.02):
        wait_until(lambda: len(calls) > 4, "samples")
    n_calls = len(calls)
    assert set(calls) == {"rollcast-history"}
    assert "rollcast-history" not in {thread.name for thread in threading.enumerate()}
    assert len(calls) == n_calls


def test_a_slow_interval_does_not_keep_it_from_ending():
    with HistorySampler(lambda: None, interval_s=3600.0):
        pass
    assert "rollcast-history" not in {thread.name for thread in threading.enumerate()}
