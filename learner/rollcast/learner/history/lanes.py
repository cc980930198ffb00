"""Stores the time of the learner and of each actor by state: one lane each, per second and per 15 seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.history.activity_times import Span
from rollcast.learner.history.points import COARSE_S, FINE_S, N_COARSE, N_FINE
from rollcast.services.history.history import Lane, Shares

# The delay between the end of a second and its closing: reports come every second or two, and may be late.
CLOSES_AFTER_S: Final = 3
# The number of open seconds, with room for the current one and a late close.
_N_OPEN: Final = CLOSES_AFTER_S + 3
# A lane is forgotten when none of its time is in the longest resolution.
_FORGET_AFTER_S: Final = COARSE_S * N_COARSE
_FULL: Final = 255

# The open seconds and the sums of the open quarter minutes, float64; both when closed, uint8. All [lanes, ..., states].
_Arrays: TypeAlias = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


@dataclass(slots=True)
class _Known:
    index: int
    # The last second with a report of the lane.
    last_second: int
    # Returns since when the lane is in a state without reports; None: it is not.
    held_since: Callable[[], float | None] | None = None


def _not_held() -> float | None:
    return None


class LaneTable:
    """The lanes of all actors, or of the learner, in one table. Not thread-safe.

    All lanes close a second together, `CLOSES_AFTER_S` after its end. Time for a closed second is dropped.

    Invariant: a lane's row of a second never changes once `advance` has closed the second. A reader that passes the
    time of its last answer gets each row once from `after`.

    Args:
        n_states: The number of states.
        max_lanes: The largest number of lanes. A new lane replaces the longest silent one.
        held_state: The number of the state of a held lane; see `open`.
    """

    def __init__(self, n_states: int, *, max_lanes: int, held_state: int = 0) -> None:
        self._n_states = n_states
        self._max_lanes = max_lanes
        self._held_state = held_state
        self._known: dict[str, _Known] = {}
        self._free: list[int] = []
        # The first second that is not closed; and the times at which the remembered intervals were closed.
        self._first_open = 0
        self._fine_closed = np.full(N_FINE, -1.0)
        self._coarse_closed = np.full(N_COARSE, -1.0)
        self._open, self._sums, self._fine, self._coarse = self._arrays = _zeros(0, n_states)

    @property
    def n_bytes(self) -> int:
        """The memory of its arrays, in bytes."""
        return sum(array.nbytes for array in self._arrays)

    def open(self, name: str, held_since: Callable[[], float | None] = _not_held) -> None:
        """Begins a lane, or continues the lane of an earlier connection.

        Args:
            name: The lane's name.
            held_since: Returns the start of the lane's held state; None: it is not held. The held state fills the time
                without reports.
        """
        known = self._known.get(name)
        if known is None:
            index = self._free_index()
            if index is None:
                return
            known = self._known[name] = _Known(index, self._first_open)
        known.held_since = held_since

    def close(self, name: str) -> None:
        """Ends a lane's connection. The lane's past remains."""
        known = self._known.get(name)
        if known is not None:
            known.held_since = None

    def add(self, now: float, name: str, span: Span) -> None:
        """Spreads a span evenly over its seconds.

        Args:
            now: The time, never less than before.
            name: An open lane; other names are ignored.
            span: The span; its end is not after `now`.
        """
        self.advance(now)
        known = self._known.get(name)
        if known is None:
            return
        length_s = span.ended_s - span.began_s
        seconds = np.array(span.seconds, np.float64)
        first = max(int(span.began_s), self._first_open)
        for second in range(first, min(int(span.ended_s), self._first_open + _N_OPEN - 1) + 1):
            overlap_s = min(span.ended_s, second + 1) - max(span.began_s, second)
            if overlap_s > 0:
                self._open[known.index, second % _N_OPEN] += seconds * (overlap_s / length_s)
                known.last_second = second

    def advance(self, now: float) -> None:
        """Closes the due seconds."""
        end = int(now) - CLOSES_AFTER_S
        if end - self._first_open > N_FINE:
            self._skip(end)
        while self._first_open < end:
            self._close_second(self._first_open, now)
            self._first_open += 1

    def after(self, after_s: float) -> tuple[Lane, ...]:
        """Returns every lane's intervals that were closed after a time; with -1, all intervals."""
        lanes: list[Lane] = []
        for rows, closed, interval_s, size in (
            (self._fine, self._fine_closed, FINE_S, N_FINE),
            (self._coarse, self._coarse_closed, COARSE_S, N_COARSE),
        ):
            end = self._first_open // interval_s
            first = end
            while first > max(0, end - size) and closed[(first - 1) % size] > after_s:
                first -= 1
            if first == end:
                continue
            which = np.arange(first, end) % size
            for name, known in self._known.items():
                shares: Shares = rows[known.index, which]
                end_s = float(end * interval_s)
                lanes.append(Lane(actor_id=name, interval_s=float(interval_s), end_s=end_s, shares=shares))
        return tuple(lanes)

    def _close_second(self, second: int, now: float) -> None:
        column = self._open[:, second % _N_OPEN]
        self._fill_held(second, column)
        self._fine[:, second % N_FINE] = _in_255ths(column)
        self._fine_closed[second % N_FINE] = now
        self._sums += column
        column[...] = 0.0
        if (second + 1) % COARSE_S == 0:
            number = second // COARSE_S
            self._coarse[:, number % N_COARSE] = _in_255ths(self._sums / COARSE_S)
            self._coarse_closed[number % N_COARSE] = now
            self._sums[...] = 0.0
            self._forget(second)

    def _fill_held(self, second: int, column: NDArray[np.float64]) -> None:
        held: list[_Known] = []
        since_s: list[float] = []
        for known in self._known.values():
            since = None if known.held_since is None else known.held_since()
            if since is not None and since < second + 1:
                held.append(known)
                since_s.append(since)
        if not held:
            return
        rows = np.array([known.index for known in held])
        unknown_s = np.minimum(1.0 - column[rows].sum(axis=1), second + 1 - np.array(since_s))
        column[rows, self._held_state] += np.maximum(unknown_s, 0.0)
        for known, seconds in zip(held, unknown_s.tolist(), strict=True):
            if seconds > 0:
                known.last_second = second

    def _skip(self, end: int) -> None:
        """Skips the seconds during which this process was stopped, because their states are unknown."""
        self._open[...] = self._sums[...] = 0
        self._fine[...] = 0
        self._fine_closed[...] = -1.0
        first, last = self._first_open // COARSE_S, end // COARSE_S
        for number in range(max(first, last - N_COARSE), last):
            self._coarse[:, number % N_COARSE] = 0
            self._coarse_closed[number % N_COARSE] = -1.0
        self._first_open = end

    def _forget(self, second: int) -> None:
        for name, known in list(self._known.items()):
            if known.held_since is None and second - known.last_second > _FORGET_AFTER_S:
                self._remove(name)

    def _remove(self, name: str) -> None:
        index = self._known.pop(name).index
        for array in self._arrays:
            array[index] = 0
        self._free.append(index)

    def _free_index(self) -> int | None:
        """Returns the row for a new lane; None if there are too many, and all of them are connected."""
        if not self._free:
            size = len(self._fine)
            if size < self._max_lanes:
                self._grow(min(max(2 * size, 1), self._max_lanes))
            else:
                gone = [name for name, known in self._known.items() if known.held_since is None]
                if not gone:
                    return None
                self._remove(min(gone, key=lambda name: self._known[name].last_second))
        return self._free.pop()

    def _grow(self, size: int) -> None:
        """Makes room for more lanes; existing ones keep their rows."""
        before, larger = len(self._fine), _zeros(size, self._n_states)
        for new, old in zip(larger, self._arrays, strict=True):
            new[:before] = old
        self._open, self._sums, self._fine, self._coarse = self._arrays = larger
        self._free += range(before, size)


def _zeros(size: int, n_states: int) -> _Arrays:
    return (
        np.zeros((size, _N_OPEN, n_states), np.float64),
        np.zeros((size, n_states), np.float64),
        np.zeros((size, N_FINE, n_states), np.uint8),
        np.zeros((size, N_COARSE, n_states), np.uint8),
    )


def _in_255ths(shares: NDArray[np.float64]) -> Shares:
    return np.asarray(np.rint(np.clip(shares, 0.0, 1.0) * _FULL).astype(np.uint8))
