"""Judges whether samples are flat."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.soak.samples import Sample

MB = 1e6
# Megabytes an hour that resident memory may grow by, with 95 % confidence: a leak of 300 bytes a rollout, at ten
# rollouts a second, is above.
MEMORY_BAR = 10.0

_BINS = 60
_Z = 1.96
_HOUR_S = 3600.0
# By how many the floor of each may rise.
_COUNTS = {"threads": 1, "descriptors": 0, "children": 0}
_FLOOR_PERCENT = 10


@dataclass(frozen=True)
class Growth:
    """A slope with its 95 % confidence interval, an hour."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


@dataclass(frozen=True)
class Verdict:
    """The results of one process.

    Attributes:
        process: Its name in the soak.
        first_mb: Its resident memory when the warm-up ended, in MB.
        last_mb: At the end.
        memory: How that grew, in MB an hour.
        counts: Of threads, descriptors and children by name: their floor in the first third of the time after the
            warm-up, and in the last.
        growing: What grows, in words; nothing where all is flat.
    """

    process: str
    first_mb: float
    last_mb: float
    memory: Growth
    counts: dict[str, tuple[int, int]]
    growing: tuple[str, ...]


def theil_sen(time_s: NDArray[np.float64], values: NDArray[np.float64]) -> Growth:
    """The median of the slopes between all pairs of points, which a third of outliers does not move.

    The interval is Sen's (1968, "Estimates of the regression coefficient based on Kendall's tau"): the slopes whose
    ranks are `z * sqrt(n (n - 1) (2 n + 5) / 18) / 2` below and above the middle.

    Args:
        time_s: `[N]`, in seconds, at least 3 and no two the same.
        values: `[N]`.
    """
    n = len(time_s)
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((values[second] - values[first]) / (time_s[second] - time_s[first])) * _HOUR_S
    reach = _Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((len(slopes) - reach) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + reach) / 2))
    return Growth(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def judge(samples: Iterable[Sample], *, warm_up_s: float, memory_bar: float = MEMORY_BAR) -> list[Verdict]:
    """Judges every process that was there when the warm-up ended and is there at the end.

    Memory is flat where the upper end of its slope's interval is at most the bar. Descriptors and children are flat
    where their floor, which they are above for nine tenths of the time, has not risen: what comes and goes shows above
    it, what only comes lifts it. Threads may be one more: a pool has one for each that ever worked at the same time.

    Args:
        warm_up_s: What came before is not looked at.
        memory_bar: In MB an hour.
    """
    by_process: defaultdict[tuple[str, int], list[Sample]] = defaultdict(list)
    times = set()
    for sample in samples:
        if sample.time_s >= warm_up_s:
            times.add(sample.time_s)
            by_process[sample.process, sample.pid].append(sample)
    if not times:
        return []
    return [
        _judge_one(taken, memory_bar)
        for taken in by_process.values()
        if (taken[0].time_s, taken[-1].time_s) == (min(times), max(times))
    ]


def _judge_one(taken: Sequence[Sample], memory_bar: float) -> Verdict:
    time_s = np.array([sample.time_s for sample in taken])
    resident = np.array([sample.resident_bytes for sample in taken]) / MB
    # medians of neighbours: they say nearly the same, and the interval would be too narrow with each on its own
    bins = np.array_split(np.arange(len(taken)), min(_BINS, len(taken)))
    memory = theil_sen(
        np.array([np.median(time_s[chosen]) for chosen in bins]),
        np.array([np.median(resident[chosen]) for chosen in bins]),
    )
    third = max(1, len(taken) // 3)
    counts = {name: (_floor(taken[:third], name), _floor(taken[-third:], name)) for name in _COUNTS}
    growing = [
        f"{name} from {first} to {last}" for name, (first, last) in counts.items() if last > first + _COUNTS[name]
    ]
    if memory.high > memory_bar:
        growing.append(f"memory by {memory} MB an hour, above the bar of {memory_bar:g}")
    return Verdict(taken[0].process, float(resident[0]), float(resident[-1]), memory, counts, tuple(growing))


def _floor(taken: Sequence[Sample], name: str) -> int:
    return int(np.percentile([getattr(sample, name) for sample in taken], _FLOOR_PERCENT, method="lower"))
