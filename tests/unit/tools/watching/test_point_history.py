import itertools

import pytest

from rollcast.tools.watching.point_history import PointHistory, segments
from tests.histories import STARTED_UNIX_S, points


def times(history: PointHistory) -> list[float]:
    return [point.time_s - STARTED_UNIX_S for point in history.points()]


def filled(*added, started=STARTED_UNIX_S) -> PointHistory:
    history = PointHistory()
    for some in added:
        history.add(some, started)
    return history


def assert_without_overlap_or_gap(history: PointHistory) -> None:
    for before, after in itertools.pairwise(history.points()):
        assert after.time_s - after.interval_s == pytest.approx(before.time_s, abs=1e-6)


def test_takes_the_finest_points_for_each_time_without_overlap():
    now = 7200.0
    history = filled(
        points(120, interval_s=60.0, end_s=now),
        points(240, interval_s=15.0, end_s=now),
        points(300, end_s=now),
    )
    assert_without_overlap_or_gap(history)
    intervals = [point.interval_s for point in history.points()]
    assert intervals == [60.0] * 60 + [15.0] * 220 + [1.0] * 300
    assert times(history)[-1] == now


def test_coarse_point_that_begins_before_the_fine_ones_takes_its_whole_interval():
    history = filled(points(10, interval_s=15.0), points(100, end_s=157.0))
    assert_without_overlap_or_gap(history)
    assert [point.interval_s for point in history.points()] == [15.0] * 4 + [1.0] * 97


def test_young_run_has_fine_points_only():
    history = filled(points(2, interval_s=15.0), points(31))
    assert [point.interval_s for point in history.points()] == [1.0] * 31


def test_forgets_fine_points_as_a_learner_does():
    history = PointHistory()
    for second in range(1, 1001):
        history.add(points(1, end_s=float(second)), STARTED_UNIX_S)
    assert times(history) == [float(second) for second in range(701, 1001)]


def test_ignores_points_that_it_has():
    history = filled(points(20), points(25))
    assert times(history) == [float(second) for second in range(1, 26)]


def test_joins_points_of_the_whole_run_in_pairs_when_there_are_too_many():
    history = filled(points(501, interval_s=60.0, waiting_fraction=0.5))
    found = history.points()
    assert len(found) == 251
    assert found[0].interval_s == 120.0
    assert (found[0].env_steps, found[0].waiting_fraction) == (12_000, 0.5)
    assert_without_overlap_or_gap(history)


def test_joined_points_weigh_rates_by_time_and_keep_the_last_counts():
    first = points(1, interval_s=60.0, env_steps_per_second=100.0, updates=3)
    rest = points(500, interval_s=60.0, end_s=501 * 60.0, env_steps_per_second=200.0, updates=9)
    joined = filled(first, rest).points()[0]
    assert (joined.env_steps_per_second, joined.updates) == (150.0, 9)


def test_points_of_an_earlier_process_stay_with_a_gap():
    history = filled(points(100))
    history.begin_process(STARTED_UNIX_S + 150)
    history.add(points(20), STARTED_UNIX_S + 150)
    parts = segments(history.points())
    assert [len(part) for part in parts] == [100, 20]
    assert times(history)[99:101] == [100.0, 151.0]


def test_earlier_processes_are_bounded():
    history = PointHistory()
    for process in range(30):
        started = STARTED_UNIX_S + process * 1000
        history.begin_process(started)
        history.add(points(300), started)
    assert 300 < len(history.points()) <= 1300
    assert times(history)[-1] == 29_300.0


def test_clock_that_was_set_back_drops_the_points_after_the_new_begin():
    history = filled(points(100))
    history.begin_process(STARTED_UNIX_S + 50)
    history.add(points(5), STARTED_UNIX_S + 50)
    assert times(history) == [float(second) for second in range(1, 56)]


def test_steps_that_go_back_begin_a_new_segment():
    before, after = points(3), points(3, end_s=6.0)
    going_back = [*after[:2], before[0], *before[1:]]
    assert len(segments(going_back)) > 1
    assert len(segments([*before, *after])) == 1


def test_latest_points_are_fine_ones():
    history = filled(points(240, interval_s=15.0), points(300, end_s=3600.0))
    assert len(history.latest(60.0, STARTED_UNIX_S + 3600.0)) == 60
