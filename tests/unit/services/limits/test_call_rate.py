import pytest

from rollcast.services.errors import ThrottledError
from rollcast.services.limits.call_rate import CallRate
from rollcast.services.limits.limits import Limits
from tests.clocks import Clock


def calls(rate, peer, n):
    """Returns the number of n simultaneous calls that go through."""
    for done in range(n):
        try:
            rate.check(peer)
        except ThrottledError as error:
            return done, error.limit
    return n, ""


def test_a_host_has_a_burst_and_then_its_rate():
    clock = Clock()
    rate = CallRate(Limits(calls_per_second=100, calls_per_second_per_host=10), clock)
    assert calls(rate, "ipv4:1.1.1.1:1", 50) == (20, "calls_per_second_per_host")
    assert calls(rate, "ipv4:1.1.1.1:2", 50) == (0, "calls_per_second_per_host")
    clock.now = 0.5
    assert calls(rate, "ipv4:1.1.1.1:3", 50) == (5, "calls_per_second_per_host")
    clock.now = 1000.0
    assert calls(rate, "ipv4:1.1.1.1:4", 50) == (20, "calls_per_second_per_host")


def test_one_host_takes_nothing_from_another_and_all_have_a_rate():
    rate = CallRate(Limits(calls_per_second=15, calls_per_second_per_host=10), Clock())
    assert calls(rate, "ipv4:1.1.1.1:1", 50) == (20, "calls_per_second_per_host")
    assert calls(rate, "ipv6:%5B::1%5D:1", 50) == (10, "calls_per_second")
    assert calls(rate, "ipv4:1.1.1.1:1", 1) == (0, "calls_per_second_per_host")


def test_slow_rate_admits_one_call_at_a_time():
    clock = Clock()
    rate = CallRate(Limits(calls_per_second_per_host=0.1), clock)
    assert calls(rate, "ipv4:1.1.1.1:1", 3) == (1, "calls_per_second_per_host")
    clock.now = 10.0
    assert calls(rate, "ipv4:1.1.1.1:1", 3) == (1, "calls_per_second_per_host")


def test_a_unix_socket_does_not_count():
    rate = CallRate(Limits(calls_per_second=1, calls_per_second_per_host=1), Clock())
    assert calls(rate, "unix:", 1000) == (1000, "")


def test_hosts_are_forgotten():
    rate = CallRate(Limits(calls_per_second=1e9, calls_per_second_per_host=1), Clock())
    assert calls(rate, "ipv4:10.9.9.9:1", 50) == (2, "calls_per_second_per_host")
    for number in range(10_000):
        rate.check(f"ipv4:10.0.{number // 256}.{number % 256}:1")
        if number == 4000:
            assert calls(rate, "ipv4:10.9.9.9:1", 1)[0] == 0, "it is remembered among so many"
    assert calls(rate, "ipv4:10.9.9.9:1", 50)[0] == 2, "and forgotten"
    with pytest.raises(ThrottledError, match=r"^10\.0\.39\.15 made more than 1 calls a second"):
        for _ in range(3):
            rate.check("ipv4:10.0.39.15:2")
