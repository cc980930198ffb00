"""Curves of bounded length: a full one becomes coarser, and loses no part of the run."""

from rollcast.services.history.curves import MAX_METRICS, MAX_POINTS, MetricCurves
from rollcast.services.history.history import MetricCurve


def value(metric: str, time_s: float) -> MetricCurve:
    return MetricCurve(metric=metric, time_s=(time_s,), env_steps=(int(time_s),), values=(2.0 * time_s,))


def test_a_full_curve_is_thinned_out_and_keeps_both_ends():
    curves = MetricCurves()
    for time_s in range(1000):
        curves.add(value("loss", time_s))
    (curve,) = curves.after()
    assert len(curve.values) == MAX_POINTS
    assert (curve.time_s[0], curve.time_s[-1]) == (0, 999)
    assert all(later - earlier <= 8 for earlier, later in zip(curve.time_s, curve.time_s[1:], strict=False))
    assert curve.values == tuple(2.0 * time_s for time_s in curve.time_s)


def test_only_so_many_metrics_are_remembered():
    curves = MetricCurves()
    for number in range(MAX_METRICS + 5):
        curves.add(value(f"own/{number}", 1.0))
    curves.add(value("own/0", 2.0))
    assert len(curves.after()) == MAX_METRICS
    assert [curve.metric for curve in curves.after(1.0)] == ["own/0"]


def test_what_came_from_a_time_on_is_forgotten():
    curves = MetricCurves()
    for time_s in (1.0, 2.0, 3.0):
        curves.add(value("loss", time_s), began_s=10.0)
    curves.forget_from(12.0)
    assert [curve.time_s for curve in curves.after()] == [(11.0,)]
