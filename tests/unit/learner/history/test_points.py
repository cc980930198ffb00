import numpy as np
import pytest

from rollcast.learner.history.points import PointRing, Sample


def fill(ring: PointRing, times: list[float], *, steps_per_s: float = 10.0, waiting: float = 0.25) -> None:
    for time_s in times:
        ring.add(time_s, Sample(env_steps=round(steps_per_s * time_s), updates=int(time_s)), waited_s=waiting * time_s)


def test_each_interval_gives_one_point_with_its_own_rates():
    ring = PointRing(2, 10)
    ring.add(0.0, Sample(), waited_s=0.0)
    ring.add(1.0, Sample(env_steps=100), waited_s=0.5)
    ring.add(2.0, Sample(env_steps=300, updates=3, policy_version=4, mean_return=1.5, episodes=7), waited_s=0.5)
    ring.add(4.0, Sample(env_steps=300, replay_size=9), waited_s=2.5)
    first, second = ring.after(-1.0)
    assert (first.time_s, first.interval_s, first.env_steps_per_second, first.waiting_fraction) == (2.0, 2.0, 150, 0.25)
    assert (first.env_steps, first.updates, first.policy_version, first.mean_return) == (300, 3, 4, 1.5)
    assert (first.episodes, first.replay_size) == (7, None)
    assert (second.env_steps_per_second, second.waiting_fraction, second.replay_size) == (0.0, 1.0, 9)


def test_a_late_sample_gives_one_point_with_the_rate_of_all_its_time():
    ring = PointRing(1, 10)
    fill(ring, [0.0, 1.0, 7.5, 8.0])
    points = ring.after(-1.0)
    assert [point.time_s for point in points] == [1.0, 7.5, 8.0]
    assert [point.env_steps_per_second for point in points] == pytest.approx([10.0, 10.0, 10.0])
    assert [point.waiting_fraction for point in points] == pytest.approx([0.25] * 3)


def test_only_the_last_points_are_kept_and_a_reader_gets_each_once():
    ring = PointRing(1, 5)
    seen, after = [], -1.0
    for time_s in range(21):
        fill(ring, [float(time_s)])
        new = ring.after(after)
        seen += [point.time_s for point in new]
        after = time_s + 0.5
    assert seen == [float(time_s) for time_s in range(1, 21)]
    assert [point.time_s for point in ring.after(-1.0)] == [16.0, 17.0, 18.0, 19.0, 20.0]


def test_a_run_that_steps_back_has_no_negative_rate():
    ring = PointRing(1, 5)
    ring.add(0.0, Sample(env_steps=100), waited_s=0.0)
    ring.add(1.0, Sample(env_steps=40), waited_s=0.0)
    assert [point.env_steps_per_second for point in ring.after(-1.0)] == [0.0]


@pytest.mark.parametrize("n_seconds", [7, 8, 31, 200])
def test_the_whole_run_stays_in_few_points_that_a_brute_force_twin_agrees_with(n_seconds):
    rng = np.random.default_rng(3)
    steps = np.concatenate([[0], np.cumsum(rng.integers(0, 100, n_seconds))])
    waited = np.concatenate([[0.0], np.cumsum(rng.random(n_seconds))])
    ring = PointRing(1, 8, grows=True)
    for time_s, (env_steps, waited_s) in enumerate(zip(steps.tolist(), waited.tolist(), strict=True)):
        ring.add(float(time_s), Sample(env_steps=env_steps), waited_s=waited_s)
    points = ring.after(-1.0)
    assert 3 <= len(points) <= 8
    (interval_s,) = {point.interval_s for point in points}
    assert interval_s in (1, 2, 4, 8, 16, 32, 64)
    began = 0
    for point in points:
        ended = int(point.time_s)
        assert ended - began == interval_s, "no gap, no overlap"
        assert point.env_steps == steps[ended]
        assert point.env_steps_per_second == pytest.approx((steps[ended] - steps[began]) / interval_s)
        assert point.waiting_fraction == pytest.approx((waited[ended] - waited[began]) / interval_s)
        began = ended
    assert n_seconds - began < interval_s, "what is not shown yet is less than one interval"
