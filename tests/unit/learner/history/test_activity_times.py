import pytest

from rollcast.learner.history.activity_times import ActivityTimes, Span
from rollcast.services.joining.activity import ActingState, ActorActivity


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
