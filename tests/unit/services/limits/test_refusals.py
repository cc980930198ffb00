import pytest

from rollcast.services.limits.refusals import Refusals, host_of


def test_refusals_are_counted_and_listed_latest_first():
    refusals = Refusals()
    for who, limit in (("a", "max_streams"), ("b", "max_streams"), ("a", "max_streams"), ("a", "max_rank")):
        refusals.note(who, limit)
    assert [(met.who, met.limit, met.times) for met in refusals.lately()] == [
        ("a", "max_rank", 1),
        ("a", "max_streams", 2),
        ("b", "max_streams", 1),
    ]
    assert all(met.idle_s >= 0 for met in refusals.lately())


def test_number_of_entries_is_bounded():
    refusals = Refusals()
    for number in range(1000):
        refusals.note(str(number), "max_streams")
    assert [met.who for met in refusals.lately()] == [str(number) for number in range(999, 935, -1)]


def test_entries_are_forgotten_after_a_minute():
    ticks = iter((0.0, 59.0, 118.0, 178.0, 179.0, 179.0, 179.0))
    refusals = Refusals(clock=lambda: next(ticks))
    for _ in range(3):
        refusals.note("a", "max_streams")
    assert [(met.times, met.idle_s) for met in refusals.lately()] == [(3, 60.0)]
    assert refusals.lately() == ()
    refusals.note("a", "max_streams")
    assert [met.times for met in refusals.lately()] == [1]


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:127.0.0.1:50000", "127.0.0.1"), ("ipv6:%5B::1%5D:50000", "[::1]"), ("unix:", "unix")],
)
def test_host_has_no_port(peer, host):
    assert host_of(peer) == host
