import numpy as np
import pytest

from rollcast.learner.history.activity_times import ActivityTimes, Span
from rollcast.learner.history.lanes import CLOSES_AFTER_S, LaneTable
from rollcast.services.history.history import Lane
from rollcast.services.joining.activity import ActingState, ActorActivity

N_STATES = 3


def table(max_lanes: int = 8) -> LaneTable:
    return LaneTable(N_STATES, max_lanes=max_lanes, held_state=1)


def rows_of(lanes: tuple[Lane, ...], name: str, interval_s: float = 1.0) -> dict[float, list[int]]:
    """Returns the rows by the ends of their intervals."""
    return {
        lane.end_s - interval_s * (len(lane.shares) - 1 - i): row.tolist()
        for lane in lanes
        if (lane.actor_id, lane.interval_s) == (name, interval_s)
        for i, row in enumerate(lane.shares)
    }


def brute_force(spans: list[Span], began_s: float, ended_s: float) -> np.ndarray:
    """Returns the share of an interval in each state, by adding up thousandths of a second."""
    total = np.zeros(N_STATES)
    for span in spans:
        for part, seconds in enumerate(span.seconds):
            ticks = np.linspace(span.began_s, span.ended_s, 1001)[:-1] + (span.ended_s - span.began_s) / 2000
            total[part] += seconds * np.mean((ticks >= began_s) & (ticks < ended_s))
    return total / (ended_s - began_s)


def test_spans_are_spread_over_seconds_and_quarter_minutes_as_a_brute_force_twin_says():
    rng = np.random.default_rng(5)
    lanes, spans, now = table(), [], 0.3
    lanes.open("a")
    while now < 62:
        later = now + float(rng.uniform(0.2, 1.9))
        parts = rng.dirichlet(np.ones(N_STATES)) * (later - now)
        spans.append(Span(now, later, tuple(parts.tolist())))
        now = later
        lanes.add(now, "a", spans[-1])
    lanes.advance(70.0)
    seconds, quarters = rows_of(lanes.after(-1), "a"), rows_of(lanes.after(-1), "a", 15.0)
    assert sorted(quarters) == [15.0, 30.0, 45.0, 60.0]
    for end_s, row in [*seconds.items(), *quarters.items()]:
        interval_s = 15.0 if row is quarters.get(end_s) else 1.0
        assert row == pytest.approx(255 * brute_force(spans, end_s - interval_s, end_s), abs=1.5)


def test_a_reader_gets_each_interval_once_however_often_he_asks():
    rng = np.random.default_rng(6)
    lanes, now, after = table(), 0.0, -1.0
    lanes.open("a")
    seen: list[tuple[float, float]] = []
    while now < 100:
        now += float(rng.choice([0.1, 0.7, 2.5, 9.0]))
        lanes.advance(now)
        for lane in lanes.after(after):
            seen += [(lane.interval_s, lane.end_s - lane.interval_s * i) for i in range(len(lane.shares))]
        after = now
    assert len(seen) == len(set(seen))
    last = int(now) - CLOSES_AFTER_S
    assert {end for interval, end in seen if interval == 1} == set(range(1, last + 1))
    assert {end for interval, end in seen if interval == 15} == set(range(15, last + 1, 15))


def test_a_second_does_not_change_once_it_is_closed():
    lanes = table()
    lanes.open("a")
    lanes.advance(10.0)
    lanes.add(10.0, "a", Span(0.0, 10.0, (10.0, 0.0, 0.0)))
    rows = rows_of(lanes.after(-1), "a")
    assert sorted(rows) == [float(end) for end in range(1, 8)]
    assert all(row == [0, 0, 0] for row in rows.values())
    lanes.advance(13.0)
    assert rows_of(lanes.after(10.0), "a") == {8.0: [255, 0, 0], 9.0: [255, 0, 0], 10.0: [255, 0, 0]}


def test_a_lane_that_is_held_shows_it_where_no_report_has_come():
    lanes = table()
    lanes.open("a", lambda: 1.5)
    lanes.open("b", lambda: None)
    lanes.add(1.5, "a", Span(0.5, 1.5, (1.0, 0.0, 0.0)))
    lanes.advance(7.0)
    assert rows_of(lanes.after(-1), "a") == {1.0: [128, 0, 0], 2.0: [128, 128, 0], 3.0: [0, 255, 0], 4.0: [0, 255, 0]}
    assert set(map(tuple, rows_of(lanes.after(-1), "b").values())) == {(0, 0, 0)}


def test_the_past_of_an_actor_that_left_stays_until_it_is_older_than_the_history():
    lanes = table()
    lanes.open("a")
    lanes.open("b")
    lanes.add(20.0, "a", Span(17.0, 20.0, (3.0, 0.0, 0.0)))
    lanes.close("a")
    for now in range(100, 3601, 100):
        lanes.advance(float(now))
    assert max(rows_of(lanes.after(-1), "a", 15.0).values()) == [51, 0, 0]
    lanes.advance(3660.0)
    assert {lane.actor_id for lane in lanes.after(-1)} == {"b"}, "one that is connected stays"


def test_the_memory_is_bounded_and_those_that_are_gone_make_room():
    lanes = table(max_lanes=3)
    for name in "abc":
        lanes.open(name)
    full = lanes.n_bytes
    lanes.open("d")
    lanes.add(1.0, "d", Span(0.0, 1.0, (1.0, 0.0, 0.0)))  # there is no room: nothing happens
    lanes.add(2.0, "a", Span(1.0, 2.0, (1.0, 0.0, 0.0)))
    lanes.close("a")
    lanes.close("b")
    lanes.open("e")
    lanes.advance(9.0)
    assert [lane.actor_id for lane in lanes.after(-1)] == ["a", "c", "e"], "b was silent for longer than a"
    assert set(map(tuple, rows_of(lanes.after(-1), "e").values())) == {(0, 0, 0)}
    assert lanes.n_bytes == full


def test_a_process_that_was_stopped_for_long_leaves_its_time_unknown():
    lanes = table()
    lanes.open("a")
    lanes.add(40.0, "a", Span(39.0, 40.0, (1.0, 0.0, 0.0)))
    lanes.advance(45.0)
    lanes.advance(100_000.0)
    lanes.add(100_002.0, "a", Span(100_001.0, 100_002.0, (1.0, 0.0, 0.0)))
    lanes.advance(100_005.0)
    assert rows_of(lanes.after(45.0), "a") == {
        99_998.0: [0, 0, 0],
        99_999.0: [0, 0, 0],
        100_000.0: [0, 0, 0],
        100_001.0: [0, 0, 0],
        100_002.0: [255, 0, 0],
    }


@pytest.mark.parametrize("n_actors", [200, 1000])
def test_memory_for_many_actors_is_what_the_docs_say(n_actors):
    lanes = LaneTable(6, max_lanes=2048)
    for i in range(n_actors):
        lanes.open(f"actor-{i}")
    assert lanes.n_bytes == {200: 256, 1000: 1024}[n_actors] * 3576


def activity(*seconds: float) -> ActorActivity:
    return ActorActivity(state=ActingState.ACTING, seconds=seconds + (0.0,) * (6 - len(seconds)))


def test_a_report_covers_the_time_since_the_one_before():
    times = ActivityTimes()
    assert times.span(100.0, activity(1.0, 2.0)) is None, "the first says nothing of when its seconds were spent"
    assert times.span(101.0, activity(1.0, 2.75, 0.25)) == Span(100.0, 101.0, (0.0, 0.75, 0.25, 0.0, 0.0, 0.0))


def test_reports_that_come_late_and_together_keep_their_times():
    times = ActivityTimes()
    times.span(100.0, activity(0.0, 5.0))
    spans = [times.span(103.5, activity(0.0, 5.0 + second)) for second in (1, 2, 3)]
    assert [span.began_s for span in spans] == pytest.approx([100, 101, 102], abs=0.01)
    assert [span.ended_s for span in spans] == pytest.approx([101, 102, 103], abs=0.01)
    assert all(sum(span.seconds) == pytest.approx(span.ended_s - span.began_s) for span in spans)


def test_the_report_with_the_shortest_way_sets_the_clock():
    times = ActivityTimes()
    times.span(100.5, activity(10.0))  # half a second late
    span = times.span(101.0, activity(11.0))
    assert (span.began_s, span.ended_s) == (100.5, 101.0)
    assert sum(span.seconds) == pytest.approx(0.5)
    span = times.span(102.3, activity(12.0))
    assert (span.began_s, span.ended_s) == pytest.approx((101.0, 102.0), abs=0.01)


def test_clocks_that_drift_apart_by_a_thousandth_are_followed():
    times, now = ActivityTimes(), 0.0
    times.span(now, activity(0.0))
    for second in range(1, 100_000):
        now = second * 1.0009
        span = times.span(now, activity(float(second)))
    assert now - 0.1 < span.ended_s <= now


def test_no_span_reaches_into_the_future():
    times, now = ActivityTimes(), 50.0
    times.span(now, activity(3.0))
    span = times.span(51.0, activity(3.0, 400.0))
    assert span is None or span.ended_s <= 51.0


@pytest.mark.parametrize("seconds", [(2.0,), (3.0, 0.5)])
def test_seconds_that_fall_begin_anew(seconds):
    times = ActivityTimes()
    times.span(10.0, activity(3.0, 1.0))
    assert times.span(11.0, activity(*seconds)) is None
    span = times.span(12.0, activity(seconds[0] + 1.0, *seconds[1:]))
    assert (span.began_s, span.ended_s) == pytest.approx((11.0, 12.0))
