import numpy as np
import pytest

from rollcast.learner.history.recent import RecentCounts, RecentDurations


def test_counts_are_those_of_the_last_minute_as_a_brute_force_twin_says():
    rng = np.random.default_rng(1)
    counts, added, now = RecentCounts(3), [], 0.0
    for _ in range(400):
        now += float(rng.choice([0.1, 1.0, 5.0, 70.0], p=[0.5, 0.4, 0.09, 0.01]))
        more = rng.integers(0, 5, 3)
        counts.add(now, more)
        added.append((int(now), more))
        expected = sum(one for second, one in added if second > int(now) - 60)
        assert counts.total(now).tolist() == expected.tolist()
    assert counts.total(now + 60).tolist() == [0, 0, 0]


def test_quantiles_are_those_of_the_durations_to_a_fortieth():
    rng = np.random.default_rng(2)
    durations_s = np.exp(rng.normal(-2, 3, 1001))
    recent = RecentDurations()
    recent.add(5.0, durations_s[:500])
    recent.add(6.0, durations_s[500:])
    found = recent.quantiles(7.0, 0.0, 0.5, 0.99)
    expected = np.quantile(np.maximum(durations_s, 1e-4), [0.0, 0.5, 0.99], method="inverted_cdf")
    assert found == pytest.approx(expected.tolist(), rel=0.026)


def test_there_are_no_quantiles_of_nothing():
    recent = RecentDurations()
    assert recent.quantiles(0.0, 0.5, 0.99) == (None, None)
    recent.add(0.0, np.array([1.0]))
    assert recent.quantiles(59.0, 0.5) == pytest.approx((1.0,), rel=0.026)
    assert recent.quantiles(60.0, 0.5) == (None,)


def test_durations_beyond_the_scale_count_as_its_ends():
    recent = RecentDurations()
    recent.add(0.0, np.array([0.0, 1e30]))
    shortest, longest = recent.quantiles(0.0, 0.0, 1.0)
    assert shortest < 2e-4
    assert longest > 86_400
