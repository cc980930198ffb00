"""Reads the curves of runs, and computes median and spread of runs that differ only in their seed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.writers.metric_names import MEAN_RETURN
from rollcast.services.errors import ConfigurationError

# The settings of a run's place and output, and the seed: runs that differ only in these are alike.
_UNLIKE_IN_NAME: Final = frozenset(
    {"seed", "run_dir", "summary_json", "address", "log_level", "log_interval_s", "resume", "recipe"}
)
_TIME: Final = "time"
_ENV_STEPS: Final = "env_steps"


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric of one run.

    Attributes:
        x: float64 `[N]`, environment steps or seconds since the first record; increasing.
        y: float64 `[N]`, finite.
        has_ended: True if the run has reached its end, so that its last value is its result.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class Spread:
    """The joint curve of several runs.

    Attributes:
        x: float64 `[N]`, the union of the curves' x.
        median: float64 `[N]`, the median of the curves that count; see `spread_of`.
        low: float64 `[N]`, the first quartile.
        high: float64 `[N]`, the third quartile.
        all_until: The largest x that every curve reaches.
    """

    x: NDArray[np.float64]
    median: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    all_until: float


def read_curve(run: RunDirectory, metric: str, *, over_seconds: bool = False, has_ended: bool = False) -> Curve:
    """Reads a metric of a run from its `metrics.jsonl`.

    Args:
        run: The run.
        metric: The tag, such as `train/mean_return`.
        over_seconds: True: x is the seconds since the first record; False: x is the environment steps.
        has_ended: See `Curve`.

    Raises:
        ConfigurationError: The run does not have the metric.
    """
    records = list(read_records(run.metrics_path))
    points = [
        (record[_TIME] - records[0][_TIME] if over_seconds else record[_ENV_STEPS], record[metric])
        for record in records
        if _has_value(record, metric)
    ]
    if not points:
        tags = sorted({tag for record in records for tag in record if _has_value(record, tag)} - {_TIME, _ENV_STEPS})
        known = f"expected one of {', '.join(tags)}" if tags else "it has no records yet"
        if metric == MEAN_RETURN.tag and records:
            known = f"no episode has ended yet; {known}"
        raise ConfigurationError(
            f"{str(run.path)!r} has no values of {metric!r}; {known}; see docs/reference/metrics.md"
        )
    # Several evaluators may report in another order than their policies were due.
    points.sort(key=lambda point: point[0])
    x, y = np.array(points, np.float64).T
    return Curve(x, y, has_ended)


def _has_value(record: Mapping[str, Any], tag: str) -> bool:
    """Returns whether a record has a finite value: a mean of nothing is null."""
    value = record.get(tag)
    return isinstance(value, int | float) and bool(np.isfinite(value))


def spread_of(curves: Sequence[Curve]) -> Spread:
    """Computes median and quartiles of curves. A curve keeps its value until its next point.

    The curve of a finished run keeps its last value up to the end of the longest curve. Without the solved seeds, the
    median would fall. Any other curve counts until its last point.

    Args:
        curves: The curves, at least one.
    """
    x = np.unique(np.concatenate([curve.x for curve in curves]))
    values = np.full((len(curves), len(x)), np.nan)
    for row, curve in zip(values, curves, strict=True):
        index = np.searchsorted(curve.x, x, side="right") - 1
        lives = (index >= 0) & (curve.has_ended | (x <= curve.x[-1]))
        row[lives] = curve.y[index[lives]]
    low, median, high = np.nanquantile(values, [0.25, 0.5, 0.75], axis=0)
    return Spread(x, median, low, high, min(float(curve.x[-1]) for curve in curves))


def alike(runs: Sequence[RunDirectory]) -> dict[str, list[RunDirectory]]:
    """Groups runs that differ only in their seed.

    Args:
        runs: The runs.

    Returns:
        The runs of each group, by a name: algorithm, environment, and the settings that distinguish groups with the
        same algorithm and environment.

    Raises:
        ConfigurationError: A folder is not a run.
    """
    groups: dict[str, list[RunDirectory]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for run in runs:
        values = flat_settings(run.read_settings())
        key = json.dumps(values, sort_keys=True, default=str)
        groups.setdefault(key, []).append(run)
        settings[key] = values
    named: dict[str, list[RunDirectory]] = {}
    for key, group in groups.items():
        own = settings[key]
        rivals = [other for other in settings.values() if _title(other) == _title(own)]
        different = sorted(name for name in own if any(other.get(name) != own[name] for other in rivals))
        named[" ".join([_title(own), *(f"{name}={own[name]}" for name in different)])] = group
    return named


def _title(settings: Mapping[str, Any]) -> str:
    return f"{settings.get('algorithm', '?')} {settings.get('env_id', '?')}"


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that distinguish runs, by full name (`ppo.discount`), without seed and folder."""
    return dict(_flat(settings))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the distinguishing settings by full name, `ppo.discount`."""
    for name, value in settings.items():
        if not prefix and name in _UNLIKE_IN_NAME:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def read_records(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yields the records of a `metrics.jsonl`; none if the file is missing.

    Skips invalid lines, because a run may be writing, or have been killed.
    """
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and _TIME in record and _ENV_STEPS in record:
                yield record
