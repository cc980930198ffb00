import pytest

from rollcast.learner.serving.records import RecentRate
from tests.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_nothing_has_no_rate(clock):
    rate = RecentRate(clock)
    assert rate.per_second() == 0.0
    clock.now = 3.0
    assert rate.per_second() == 0.0


def test_the_rate_is_that_of_the_last_five_seconds(clock):
    rate = RecentRate(clock)
    for n in [100] * 640 + [10] * 320:
        clock.now += 1 / 64
        rate.add(n)
    assert rate.per_second() == 640.0


def test_one_that_adds_seldom_has_the_rate_of_its_last_changes(clock):
    rate = RecentRate(clock)
    for _ in range(5):
        clock.now += 60.0
        rate.add(600)
    assert rate.per_second() == pytest.approx(10.0)


def test_one_that_has_stopped_has_no_rate(clock):
    rate = RecentRate(clock)
    for _ in range(10):
        clock.now += 1.0
        rate.add(5)
    assert rate.per_second() == pytest.approx(5.0)
    clock.now += 15.0
    assert rate.per_second() == 0.0
