"""Keeps the metrics of a run as curves of bounded length, and thins out a full curve."""

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

from rollcast.services.history.history import EvaluationPoint, MetricCurve

MAX_POINTS: Final = 256
MAX_METRICS: Final = 512


class _Timed(Protocol):
    @property
    def time_s(self) -> float: ...


_Point = TypeVar("_Point", bound=_Timed)


class _Value(NamedTuple):
    time_s: float
    env_steps: int
    value: float


class MetricCurves:
    """The curves of a run's metrics. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._values: dict[str, list[_Value]] = {}

    def copy(self) -> "MetricCurves":
        """Returns a copy, which later changes of this object do not affect."""
        copied = MetricCurves()
        copied._values = {metric: values.copy() for metric, values in self._values.items()}
        return copied

    def add(self, curve: MetricCurve, began_s: float = 0.0) -> None:
        """Appends values to the curve of a metric. Ignores a new metric if there are too many metrics.

        Args:
            curve: The new values.
            began_s: The time that corresponds to 0 in the curve's times.
        """
        if curve.metric not in self._values and len(self._values) >= MAX_METRICS:
            return
        values = self._values.setdefault(curve.metric, [])
        for time_s, env_steps, value in zip(curve.time_s, curve.env_steps, curve.values, strict=True):
            values.append(_Value(time_s + began_s, env_steps, value))
            if len(values) > MAX_POINTS:
                drop_densest(values)

    def forget_from(self, time_s: float) -> None:
        """Drops the values from a time on."""
        for metric, values in self._values.items():
            self._values[metric] = [value for value in values if value.time_s < time_s]

    def after(self, after_s: float = -1.0) -> tuple[MetricCurve, ...]:
        """Returns the values after a time, for every metric with such values."""
        curves: list[MetricCurve] = []
        for metric, values in self._values.items():
            new = [value for value in values if value.time_s > after_s]
            if new:
                time_s, env_steps, numbers = zip(*new, strict=True)
                curves.append(MetricCurve(metric=metric, time_s=time_s, env_steps=env_steps, values=numbers))
        return tuple(curves)


def drop_densest(points: list[_Point], *, but: _Point | None = None) -> None:
    """Drops the point whose neighbours are closest to each other in time, but never the first or last point.

    Args:
        points: At least four points, the oldest first.
        but: A point to keep.
    """
    places = (place for place in range(1, len(points) - 1) if points[place] is not but)
    del points[min(places, key=lambda place: points[place + 1].time_s - points[place - 1].time_s)]


def thinned(evaluations: Iterable[EvaluationPoint], most: int) -> list[EvaluationPoint]:
    """Thins out evaluations where they are densest in time. Keeps the newest of the evaluations that set a new best.

    Args:
        evaluations: The evaluations, the oldest first.
        most: The largest number of evaluations to keep, at least 4.
    """
    points = list(evaluations)
    while len(points) > most:
        drop_densest(points, but=next((point for point in reversed(points) if point.best), None))
    return points
