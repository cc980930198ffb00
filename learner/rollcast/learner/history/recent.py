"""Counts and quantiles over the last minute, in bounded memory."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollcast.services.history.history import MAX_COUNTED_LAG

# The seconds that count.
WINDOW_S: Final = 60

# Durations are counted in steps of 5 %, from a tenth of a millisecond on to eleven days.
_SHORTEST_S: Final = 1e-4
_STEP: Final = math.log(1.05)
_N_STEPS: Final = 472


def counts_by_lag(policy_lag: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts trajectories by their policy lag.

    Args:
        policy_lag: int64 `[trajectories]`, at least 0.

    Returns:
        int64 `[MAX_COUNTED_LAG + 1]`; the last element counts every larger lag.
    """
    return np.bincount(np.minimum(policy_lag, MAX_COUNTED_LAG), minlength=MAX_COUNTED_LAG + 1)


class RecentCounts:
    """The counts of `size` kinds of items over the last minute. Not thread-safe.

    Args:
        size: The number of kinds.
    """

    def __init__(self, size: int) -> None:
        # one row for each second; the row of a second that is over a minute ago is reused
        self._counts = np.zeros((WINDOW_S, size), np.int64)
        self._newest = -1

    def add(self, now: float, counts: NDArray[np.int64]) -> None:
        """Adds counts.

        Args:
            now: The time in seconds, at least 0; it never decreases.
            counts: int64 `[size]`.
        """
        self._advance(now)
        self._counts[self._newest % WINDOW_S] += counts

    def total(self, now: float) -> NDArray[np.int64]:
        """Returns the counts of the last minute, int64 `[size]`."""
        self._advance(now)
        return np.asarray(self._counts.sum(axis=0))

    def _advance(self, now: float) -> None:
        second = int(now)
        for passed in range(max(self._newest + 1, second - WINDOW_S + 1), second + 1):
            self._counts[passed % WINDOW_S] = 0
        self._newest = max(self._newest, second)


class RecentDurations:
    """The durations of the last minute, with quantiles exact to 2.5 %. Not thread-safe."""

    def __init__(self) -> None:
        self._counts = RecentCounts(_N_STEPS)

    def add(self, now: float, durations_s: NDArray[np.float64]) -> None:
        """Adds durations.

        Args:
            now: The time in seconds, at least 0; it never decreases.
            durations_s: float64 `[n]`.
        """
        steps = np.log(np.maximum(durations_s, _SHORTEST_S) / _SHORTEST_S) / _STEP
        steps = np.minimum(steps, _N_STEPS - 1).astype(np.int64)
        self._counts.add(now, np.bincount(steps, minlength=_N_STEPS))

    def quantiles(self, now: float, *which: float) -> tuple[float | None, ...]:
        """Returns quantiles of the last minute's durations, in seconds.

        Args:
            now: The time.
            which: The quantiles, from 0 to 1.

        Returns:
            One value for each quantile; None without durations.
        """
        up_to = np.cumsum(self._counts.total(now))
        if not up_to[-1]:
            return (None,) * len(which)
        # the smallest duration with at least the wanted share at or below it
        steps = (int(np.searchsorted(up_to, max(1, math.ceil(wanted * up_to[-1])))) for wanted in which)
        return tuple(_SHORTEST_S * math.exp(_STEP * (step + 0.5)) for step in steps)
