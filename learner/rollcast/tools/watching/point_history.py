"""Keeps the numbers of a run over time in bounded memory: recent ones at fine resolution, old ones at a coarse one."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from rollcast.services.history.history import HistoryPoint

# The number of remembered points of 1 s, of 15 s, and of the whole run, the same as in a learner.
_FINE, _MEDIUM, _COARSE = 0, 1, 2
_REMEMBERED: Final = (300, 240, 500)
_FINE_S: Final = 1.0
_MEDIUM_S: Final = 15.0
# The most points that are remembered of all earlier processes of the learner.
_REMEMBERED_EARLIER: Final = 1000
# Times that differ by less than this, in intervals, count as equal: they are times of samples, which may be late.
_LATE: Final = 0.5
# Intervals follow each other if the gap between them is below this, in seconds or in lengths of the longer interval.
_GAP_S: Final = 5.0
_GAP: Final = 0.5


class PointHistory:
    """The points of a run, with times in seconds since 1970. Used by one thread at a time.

    It keeps the points of earlier processes of the learner, with a gap before the points of the current process.
    """

    def __init__(self) -> None:
        self._earlier: list[HistoryPoint] = []
        self._tiers: tuple[list[HistoryPoint], ...] = ([], [], [])

    def copy(self) -> "PointHistory":
        """Returns a copy that later points do not change."""
        copied = PointHistory()
        copied._earlier = self._earlier.copy()
        copied._tiers = tuple(tier.copy() for tier in self._tiers)
        return copied

    def begin_again(self) -> None:
        """Forgets the points of this process of the learner, because it sends all of them again."""
        self._tiers = ([], [], [])

    def begin_process(self, started_unix_s: float) -> None:
        """Keeps all points as those of an earlier process, because the points of a new process follow.

        Args:
            started_unix_s: The start of the new process. Later points are dropped, because the clock was set back.
        """
        points = [point for point in self._spliced() if point.time_s <= started_unix_s]
        while len(points) > _REMEMBERED_EARLIER:
            fewer = _in_pairs(points)
            # No points can be joined over gaps: forget the oldest.
            points = fewer if len(fewer) < len(points) else points[-_REMEMBERED_EARLIER:]
        self._earlier = points
        self.begin_again()

    def add(self, points: Iterable[HistoryPoint], started_unix_s: float) -> None:
        """Adds points of this process, the oldest of each resolution first.

        Args:
            points: The points, with times since the process began.
            started_unix_s: The time at which that process began.
        """
        for point in points:
            number = _tier(point)
            tier = self._tiers[number]
            moved = dataclasses.replace(point, time_s=point.time_s + started_unix_s)
            if not tier or moved.time_s > tier[-1].time_s:
                tier.append(moved)
            if len(tier) <= _REMEMBERED[number]:
                continue
            if number == _COARSE:
                tier[:] = _in_pairs(tier)
            del tier[: -_REMEMBERED[number]]

    def points(self) -> tuple[HistoryPoint, ...]:
        """Returns the points to draw, the oldest first: the finest available for each time, without overlap."""
        return tuple(self._spliced())

    def latest(self, last_s: float, now_unix_s: float) -> tuple[HistoryPoint, ...]:
        """Returns the finest points of the last `last_s` seconds."""
        return tuple(point for point in self._tiers[_FINE] if point.time_s > now_unix_s - last_s)

    def _spliced(self) -> list[HistoryPoint]:
        fine, medium, coarse = (self._tiers[tier] for tier in (_FINE, _MEDIUM, _COARSE))
        return self._earlier + _splice(_splice(coarse, medium), fine)


def segments(points: Sequence[HistoryPoint]) -> list[list[HistoryPoint]]:
    """Splits points at gaps, in which the learner was down, because lines are not drawn over gaps.

    Args:
        points: The points, the oldest first.
    """
    parts: list[list[HistoryPoint]] = []
    for point in points:
        if parts and _follows(parts[-1][-1], point) and point.env_steps >= parts[-1][-1].env_steps:
            parts[-1].append(point)
        else:
            parts.append([point])
    return parts


def _tier(point: HistoryPoint) -> int:
    if abs(point.interval_s - _FINE_S) < _FINE_S / 2:
        return _FINE
    return _MEDIUM if abs(point.interval_s - _MEDIUM_S) < _FINE_S / 2 else _COARSE


def _begin(point: HistoryPoint) -> float:
    return point.time_s - point.interval_s


def _follows(before: HistoryPoint, after: HistoryPoint) -> bool:
    """Returns whether there is no gap between two points."""
    return _begin(after) - before.time_s < max(_GAP_S, _GAP * max(before.interval_s, after.interval_s))


def _splice(coarse: list[HistoryPoint], fine: list[HistoryPoint]) -> list[HistoryPoint]:
    """Returns the coarse points that begin before the fine ones, then the fine points after them."""
    if not fine:
        return coarse
    tolerance_s = _LATE * fine[-1].interval_s
    older = [point for point in coarse if _begin(point) < _begin(fine[0]) - tolerance_s]
    if not older:
        return fine
    return older + [point for point in fine if _begin(point) > older[-1].time_s - tolerance_s]


def _in_pairs(points: Sequence[HistoryPoint]) -> list[HistoryPoint]:
    """Joins every two points that follow each other, are of about one length, and belong to one process."""
    joined: list[HistoryPoint] = []
    index = 0
    while index < len(points):
        pair = points[index : index + 2]
        if len(pair) == 2 and _follows(*pair) and pair[1].interval_s <= 1.5 * pair[0].interval_s:
            joined.append(_joined(*pair))
            index += 2
        else:
            joined.append(pair[0])
            index += 1
    return joined


def _joined(first: HistoryPoint, second: HistoryPoint) -> HistoryPoint:
    interval_s = first.interval_s + second.interval_s
    share = first.interval_s / interval_s
    return dataclasses.replace(
        second,
        interval_s=interval_s,
        env_steps_per_second=share * first.env_steps_per_second + (1 - share) * second.env_steps_per_second,
        waiting_fraction=share * first.waiting_fraction + (1 - share) * second.waiting_fraction,
    )
