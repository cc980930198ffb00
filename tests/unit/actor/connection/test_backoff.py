import itertools

from rollcast.actor.connection.backoff import backoff_delays


def test_delays_grow_to_the_longest_and_are_jittered():
    bounds = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    for _ in range(50):
        delays = list(itertools.islice(backoff_delays(first_s=0.1, factor=2.0, longest_s=1.0), len(bounds)))
        assert all(bound / 2 <= delay <= bound for delay, bound in zip(delays, bounds, strict=True))
    first_delays = {next(backoff_delays()) for _ in range(20)}
    assert len(first_delays) > 1, "a thousand actors must not come back in the same millisecond"
