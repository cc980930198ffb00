"""Keeps the numbers of a run in three resolutions: seconds, 15 seconds, and the whole run."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from rollcast.services.history.history import HistoryPoint
from rollcast.services.wire.same_fields import same_fields

# Length and number of the intervals of the two resolutions that forget, and of the whole run, whose intervals grow.
FINE_S: Final = 1
N_FINE: Final = 300
COARSE_S: Final = 15
N_COARSE: Final = 240
WHOLE_S: Final = 60
N_WHOLE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The numbers of a run at one moment.

    Attributes:
        env_steps: Environment steps of training since the run started.
        updates: Updates since the run started.
        policy_version: The version of the newest policy.
        mean_return: The mean return of the last 100 episodes; None before the first.
        episodes: Episodes finished since the run started.
        queue_size: Trajectories in the queue.
        actors_alive: Actors with an open stream.
        replay_size: Entries in the replay buffer; None: no buffer.
    """

    env_steps: int = 0
    updates: int = 0
    policy_version: int = 0
    mean_return: float | None = None
    episodes: int = 0
    queue_size: int = 0
    actors_alive: int = 0
    replay_size: int | None = None


_of_sample: Final = same_fields(HistoryPoint, but=("time_s", "interval_s", "env_steps_per_second", "waiting_fraction"))


class _Kept(NamedTuple):
    point: HistoryPoint
    # The time that it covers, which is longer than its interval if samples were late.
    covered_s: float


class PointRing:
    """The last points of one resolution, or all points of the run at decreasing resolution.

    Invariant: the ring holds at most `size` points of equal intervals. A point ends at the first sample at or after a
    multiple of the interval.

    Args:
        interval_s: The length of an interval.
        size: The number of points to keep; even, if the intervals grow.
        grows: True: a full ring merges pairs of points and doubles the interval. False: it drops the oldest point.
    """

    def __init__(self, interval_s: float, size: int, *, grows: bool = False) -> None:
        self._interval_s = float(interval_s)
        self._size = size
        self._grows = grows
        self._points: deque[_Kept] = deque()
        # Time, environment steps and seconds waited at the begin of the interval.
        self._since: tuple[float, int, float] | None = None

    def add(self, time_s: float, sample: Sample, *, waited_s: float) -> None:
        """Takes a sample. The first sample starts the first interval.

        Args:
            time_s: Its time, later than that of the previous sample.
            sample: The sample.
            waited_s: The seconds for which the trainer has waited so far.
        """
        if self._since is None:
            self._since = time_s, sample.env_steps, waited_s
            return
        began_s, steps_before, waited_before_s = self._since
        if math.floor(time_s / self._interval_s) <= math.floor(began_s / self._interval_s):
            return
        covered_s = time_s - began_s
        # The first sample may come before a checkpoint is restored.
        n_steps = max(0, sample.env_steps - steps_before)
        point = HistoryPoint(
            time_s=time_s,
            interval_s=self._interval_s,
            env_steps_per_second=n_steps / covered_s,
            waiting_fraction=min(1.0, max(0.0, (waited_s - waited_before_s) / covered_s)),
            **_of_sample(sample),
        )
        self._since = time_s, sample.env_steps, waited_s
        self._points.append(_Kept(point, covered_s))
        if self._grows and len(self._points) == self._size:
            self._merge()
        elif len(self._points) > self._size:
            self._points.popleft()

    def after(self, after_s: float) -> tuple[HistoryPoint, ...]:
        """Returns the points after a time, oldest first."""
        new = []
        for kept in reversed(self._points):
            if kept.point.time_s <= after_s:
                break
            new.append(kept.point)
        return tuple(reversed(new))

    def _merge(self) -> None:
        """Merges pairs of points. Their number is even."""
        self._interval_s *= 2
        kept = list(self._points)
        pairs = zip(kept[::2], kept[1::2], strict=True)
        self._points = deque(_merged(first, second, self._interval_s) for first, second in pairs)


def _merged(first: _Kept, second: _Kept, interval_s: float) -> _Kept:
    covered_s = first.covered_s + second.covered_s
    one, other = first.point, second.point
    point = HistoryPoint(
        time_s=other.time_s,
        interval_s=interval_s,
        env_steps_per_second=_mean(one.env_steps_per_second, other.env_steps_per_second, first, second),
        waiting_fraction=_mean(one.waiting_fraction, other.waiting_fraction, first, second),
        **_of_sample(other),
    )
    return _Kept(point, covered_s)


def _mean(one: float, other: float, first: _Kept, second: _Kept) -> float:
    return (one * first.covered_s + other * second.covered_s) / (first.covered_s + second.covered_s)
