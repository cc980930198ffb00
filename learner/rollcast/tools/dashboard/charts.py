"""Makes the options of the page's charts, for ECharts: the history of a run as lines, points and bars."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from rollcast.services.history.history import MAX_COUNTED_LAG, EvaluationPoint, HistoryPoint, MetricCurve, PolicyDelays
from rollcast.tools.watching.point_history import segments
from rollcast.tools.watching.states import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILLION

Options: TypeAlias = dict[str, Any]
XAxis: TypeAlias = Literal["steps", "time"]

# Readable on white and on black: a canvas does not follow the theme.
_TEXT: Final = "#7d7d7d"
_LINE: Final = "#80808040"
# The fewest bars of a histogram, so that its scale does not change with every update.
_FEWEST_BARS: Final = 5

# Formats seconds as h:mm:ss; ECharts calls it in the browser.
_DURATION: Final = (
    "(v) => `${Math.floor(v / 3600)}:${String(Math.floor(v / 60) % 60).padStart(2, '0')}"
    ":${String(Math.floor(v) % 60).padStart(2, '0')}`"
)
_SHORT: Final = (
    "(v) => Math.abs(v) >= 1e6 ? `${+(v / 1e6).toFixed(2)}M` : Math.abs(v) >= 1e4 ? `${+(v / 1e3).toFixed(1)}k` : "
    "`${+v.toPrecision(4)}`"
)
_INTERVAL: Final = """(params, api) => {
  const [x, low] = api.coord([api.value(0), api.value(1)]);
  const high = api.coord([api.value(0), api.value(2)])[1];
  const style = {stroke: api.visual('color'), lineWidth: 1.5};
  const line = (x1, y1, x2, y2) => ({type: 'line', shape: {x1, y1, x2, y2}, style});
  const ends = [line(x - 3, low, x + 3, low), line(x - 3, high, x + 3, high)];
  return {type: 'group', children: [line(x, low, x, high), ...ends]};
}"""


def return_chart(
    points: Sequence[HistoryPoint],
    evaluations: Sequence[EvaluationPoint],
    *,
    started_unix_s: float,
    stop_return: float | None,
    over: XAxis,
) -> Options:
    """Returns the chart of the mean return of training and evaluation.

    Args:
        points: The points to draw, with `time_s` in seconds since 1970; gaps between them stay gaps.
        evaluations: The evaluations to draw, with `time_s` in seconds since 1970.
        started_unix_s: The start of the run, in seconds since 1970.
        stop_return: The return at which training stops; None: no line.
        over: The unit of the horizontal axis.
    """

    def x_of(point: HistoryPoint | EvaluationPoint) -> float:
        return point.env_steps if over == "steps" else round(point.time_s - started_unix_s, 1)

    best = [point for point in evaluations if point.best][-1:]
    bounded = [point for point in evaluations if math.isfinite(point.ci_low) and math.isfinite(point.ci_high)]
    training = _with_gaps([[[x_of(p), p.mean_return] for p in part] for part in segments(points)])
    has_data = bool(evaluations) or any(value is not None for _, value in training)
    threshold = {
        "silent": True,
        "symbol": "none",
        "lineStyle": {"color": VERMILLION, "type": "dashed"},
        "label": {"formatter": "threshold {c}", "position": "insideEndTop", "color": VERMILLION},
        "data": [] if stop_return is None else [{"yAxis": stop_return}],
    }
    return _chart(
        over,
        started_unix_s,
        y_axes=[{"type": "value", "scale": True}],
        empty="" if has_data else "waiting for the first episode to end",
        series=[
            _line("training, mean of 100 episodes", BLUE, training) | {"markLine": threshold},
            {
                "name": "95 % confidence interval",
                "type": "custom",
                ":renderItem": _INTERVAL,
                "itemStyle": {"color": GREEN},
                "encode": {"x": 0, "y": [1, 2]},
                "data": [[x_of(point), point.ci_low, point.ci_high] for point in bounded],
                "tooltip": {"show": False},
            },
            {
                "name": "evaluation",
                "type": "scatter",
                "symbolSize": 7,
                "itemStyle": {"color": GREEN},
                "data": [[x_of(point), point.mean_return] for point in evaluations],
            },
            {
                "name": "best",
                "type": "scatter",
                "symbol": "path://M10 0L12.4 7.2H20L13.8 11.6L16.2 19L10 14.4L3.8 19L6.2 11.6L0 7.2H7.6Z",
                "symbolSize": 15,
                "itemStyle": {"color": ORANGE},
                "data": [[x_of(point), point.mean_return] for point in best],
            },
        ],
        legend=["training, mean of 100 episodes", "evaluation", "best"],
    )


def metric_chart(curve: MetricCurve | None, *, begin_unix_s: float, started_unix_s: float, over: XAxis) -> Options:
    """Returns the chart of one metric.

    Args:
        curve: The metric's values, with times in seconds since 1970; None: no values yet.
        begin_unix_s: The time from which to draw, in seconds since 1970.
        started_unix_s: The start of the run, in seconds since 1970.
        over: The unit of the horizontal axis.
    """
    rows = () if curve is None else zip(curve.time_s, curve.env_steps, curve.values, strict=True)
    data = [
        [env_steps if over == "steps" else round(time_s - started_unix_s, 1), value]
        for time_s, env_steps, value in rows
        if time_s > begin_unix_s
    ]
    return _chart(
        over,
        started_unix_s,
        y_axes=[{"type": "value", "scale": True}],
        empty="" if data else "waiting for a record",
        series=[_line("" if curve is None else curve.metric, BLUE, data)],
        legend=[],
    )


def speed_chart(points: Sequence[HistoryPoint], *, started_unix_s: float) -> Options:
    """Returns the chart of the environment steps trained on per second, and of the trainer's share of waiting.

    Args:
        points: The points to draw, with `time_s` in seconds since 1970; gaps between them stay gaps.
        started_unix_s: The start of the run, in seconds since 1970.
    """
    parts = segments(points)

    def x_of(point: HistoryPoint) -> float:
        return round(point.time_s - started_unix_s, 1)

    rates = [_by_updates(part) for part in parts]
    speed = _with_gaps([[[x_of(p), round(p.env_steps_per_second, 1)] for p in part] for part in rates])
    waiting = _with_gaps([[[x_of(p), round(100 * p.waiting_fraction, 1)] for p in part] for part in rates])
    return _chart(
        "time",
        started_unix_s,
        y_axes=[
            {"type": "value", "min": 0},
            {
                "type": "value",
                "min": 0,
                "max": 100,
                "interval": 50,
                "splitLine": {"show": False},
                "axisLabel": {"formatter": "{value} %", "color": _TEXT},
            },
        ],
        empty="" if speed else "waiting for the first update",
        series=[
            _line("env steps/s", PURPLE, speed),
            _line("trainer waits", ORANGE, waiting)
            | {"yAxisIndex": 1, "lineStyle": {"width": 1, "type": "dotted"}, "areaStyle": {"opacity": 0.12}},
        ],
        legend=["env steps/s", "trainer waits"],
    )


def _by_updates(points: Sequence[HistoryPoint]) -> list[HistoryPoint]:
    """Joins points so that each interval contains an update; otherwise slow updates would be peaks between zeros.

    Args:
        points: Points without a gap between them.

    Returns:
        Points with the mean rates of longer intervals. Points after the last update are omitted until they last longer
        than the longest interval: the next update is still running.
    """
    joined: list[HistoryPoint] = []
    waiting: list[HistoryPoint] = []
    for point in points:
        waiting.append(point)
        if not joined or point.env_steps > joined[-1].env_steps:
            joined.append(_mean(waiting))
            waiting.clear()
    longest_s = max((point.interval_s for point in joined), default=0.0)
    if waiting and sum(point.interval_s for point in waiting) > longest_s:
        joined.append(_mean(waiting))
    return joined


def _mean(points: Sequence[HistoryPoint]) -> HistoryPoint:
    """Returns the last of some points, with the interval and the rates of all of them."""
    seconds = sum(point.interval_s for point in points)
    return dataclasses.replace(
        points[-1],
        interval_s=seconds,
        env_steps_per_second=sum(point.env_steps_per_second * point.interval_s for point in points) / seconds,
        waiting_fraction=sum(point.waiting_fraction * point.interval_s for point in points) / seconds,
    )


def lag_chart(delays: PolicyDelays) -> Options:
    """Returns the histogram of policy lag of the last minute.

    Args:
        delays: The delays; the last of the 33 counts includes all larger lags.
    """
    counts = list(delays.trajectories_by_lag)
    while counts and not counts[-1]:
        counts.pop()
    limit = delays.max_policy_lag
    n_bars = min(max(len(counts), _FEWEST_BARS, 0 if limit is None else limit + 1), MAX_COUNTED_LAG + 1)
    total = sum(counts)
    counts += [0] * (n_bars - len(counts))
    names = [f"{lag}+" if lag == MAX_COUNTED_LAG else str(lag) for lag in range(n_bars)]
    within_limit = limit is not None and limit < n_bars
    return {
        "animation": False,
        "grid": {"left": 44, "right": 12, "top": 14, "bottom": 36},
        "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
        "title": _note("" if total else "waiting for rollouts to train on"),
        "xAxis": {
            "type": "category",
            "data": names,
            "name": "policy lag, in versions",
            "nameLocation": "middle",
            "nameGap": 22,
            "nameTextStyle": {"color": _TEXT},
            "axisLabel": {"color": _TEXT},
        },
        "yAxis": {
            "type": "value",
            "max": 100 if not total else None,
            "axisLabel": {"formatter": "{value} %", "color": _TEXT},
            "splitLine": {"lineStyle": {"color": _LINE}},
        },
        "series": [
            {
                "name": "% of trajectories",
                "type": "bar",
                "itemStyle": {"color": BLUE},
                "data": [round(100 * count / total, 1) if total else 0 for count in counts],
                "markLine": {
                    "silent": True,
                    "symbol": "none",
                    "lineStyle": {"color": VERMILLION, "type": "dashed"},
                    "label": {"formatter": f"limit {limit}", "color": VERMILLION},
                    "data": [{"xAxis": names[limit]}] if within_limit and limit is not None else [],
                },
            }
        ],
    }


def _line(name: str, colour: str, data: list[list[Any]]) -> Options:
    return {
        "name": name,
        "type": "line",
        "showSymbol": len(data) == 1,
        "connectNulls": False,
        "itemStyle": {"color": colour},
        "lineStyle": {"width": 1.8},
        "data": data,
    }


def _with_gaps(parts: list[list[list[Any]]]) -> list[list[Any]]:
    """Joins parts of a line, with a point without a value between them."""
    joined: list[list[Any]] = []
    for part in parts:
        if joined:
            joined.append([part[0][0], None])
        joined.extend(part)
    return joined


def _chart(
    over: XAxis, started_unix_s: float, *, y_axes: list[Options], series: list[Options], legend: list[str], empty: str
) -> Options:
    clock = f"new Date(({started_unix_s} + v) * 1000).toLocaleTimeString()"
    x_name = "env steps" if over == "steps" else "since the run's begin"
    pointer = f"({{value: v}}) => `${{({_DURATION})(v)}}, at ${{{clock}}}`"
    return {
        "animation": False,
        "grid": {"left": 52, "right": 44, "top": 28, "bottom": 40},
        "tooltip": {"trigger": "axis", ":valueFormatter": "(v) => v == null ? '-' : (+v).toLocaleString()"},
        "legend": {"data": legend, "top": 0, "textStyle": {"color": _TEXT}, "itemHeight": 8},
        "title": _note(empty),
        "dataZoom": [{"type": "inside", "filterMode": "none"}],
        "xAxis": {
            "type": "value",
            "min": "dataMin",
            "max": "dataMax",
            "name": x_name,
            "nameLocation": "middle",
            "nameGap": 24,
            "nameTextStyle": {"color": _TEXT},
            "axisLabel": {
                "color": _TEXT,
                "hideOverlap": True,
                "showMaxLabel": False,
                ":formatter": _DURATION if over == "time" else _SHORT,
            },
            "axisPointer": {"label": {":formatter": pointer} if over == "time" else {"precision": 0}},
            "splitLine": {"show": False},
        },
        "yAxis": [
            {
                "axisLabel": {"color": _TEXT, ":formatter": _SHORT},
                "splitLine": {"lineStyle": {"color": _LINE}},
            }
            | axis
            for axis in y_axes
        ],
        "series": series,
    }


def _note(text: str) -> Options:
    """Returns the title of a chart: a note while it has no data."""
    return {
        "show": bool(text),
        "text": text,
        "left": "center",
        "top": "middle",
        "textStyle": {"color": GREY, "fontSize": 13, "fontWeight": "normal"},
    }
