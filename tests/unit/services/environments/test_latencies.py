import pytest

from rollcast.services.environments.latencies import Latencies


def test_none_are_zero():
    assert Latencies().percentiles(50, 99) == (0.0, 0.0)


def test_percentiles_are_those_of_the_last_answers():
    latencies = Latencies()
    for _ in range(100):
        latencies.note(1e6)
    for number in range(8192):
        latencies.note(number / 8191)
    assert latencies.percentiles(0, 50, 100) == pytest.approx((0.0, 0.5, 1.0))
    assert latencies.n_noted == 8292
