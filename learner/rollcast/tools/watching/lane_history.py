"""Keeps the time that the learner and its actors spent in each state, in bounded memory, and resamples it."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollcast.services.history.history import Lane, LearnerActivity, Shares
from rollcast.services.joining.activity import ActingState

# The number of remembered intervals of 1 s and of 15 s, the same as in a learner.
_REMEMBERED: Final = {"fine": 300, "coarse": 240}
# Longer intervals are coarse.
_LONGEST_FINE_S: Final = 5.0
# Lanes are drawn up to the end of their last interval, if it is at most this old. A learner closes an interval 3 s
# after its end, once all actors have reported.
_FRESH_S: Final = 6.0
# A cell is known if at least this share of it is.
_KNOWN: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Rows:
    """Consecutive intervals of one length; `end_s` in seconds since 1970. `shares` never changes."""

    interval_s: float
    end_s: float
    shares: Shares

    @property
    def begin_s(self) -> float:
        return self.end_s - self.interval_s * len(self.shares)


class LaneHistory:
    """The lanes of a run, with times in seconds since 1970. Used by one thread at a time."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Rows] = {}
        self._newest_end_s = -math.inf

    def copy(self) -> "LaneHistory":
        """Returns a copy that later lanes do not change."""
        copied = LaneHistory()
        copied._rows = self._rows.copy()
        copied._newest_end_s = self._newest_end_s
        return copied

    def begin_process(self, started_unix_s: float) -> None:
        """Forgets all lanes if they extend beyond the start of a new learner process, whose clock was set back."""
        if self._newest_end_s > started_unix_s:
            self._rows.clear()
            self._newest_end_s = -math.inf

    def add(self, lanes: Iterable[Lane], started_unix_s: float) -> None:
        """Adds new intervals; skips known intervals, and marks missing intervals as unknown.

        Args:
            lanes: The lanes, with times since the start of the learner's process.
            started_unix_s: The time at which that process started.
        """
        for lane in lanes:
            if not (lane.interval_s > 0 and math.isfinite(lane.end_s) and len(lane.shares)):
                continue
            tier = "fine" if lane.interval_s <= _LONGEST_FINE_S else "coarse"
            new = _Rows(lane.interval_s, lane.end_s + started_unix_s, lane.shares)
            rows = _appended(self._rows.get((lane.actor_id, tier)), new, _REMEMBERED[tier])
            self._rows[lane.actor_id, tier] = rows
            if tier == "fine":
                self._newest_end_s = max(self._newest_end_s, rows.end_s)

    def keep(self, actor_ids: Collection[str]) -> None:
        """Keeps the learner's lane and the lanes of these actors; forgets all others."""
        for actor_id, tier in [key for key in self._rows if key[0] and key[0] not in actor_ids]:
            del self._rows[actor_id, tier]

    def cells(self, actor_id: str, *, now_unix_s: float, span_s: float, n_cells: int) -> Shares:
        """Returns the lane of the last `span_s` seconds in cells of equal length.

        Args:
            actor_id: The actor's name; empty: the learner.
            now_unix_s: The end of the lane, or up to 6 s later.
            span_s: Seconds, above 0.
            n_cells: The number of cells.

        Returns:
            uint8 `[n_cells, states]`, the share of each state in 255ths. Zeros: not known.
        """
        fresh = 0 <= now_unix_s - self._newest_end_s <= _FRESH_S
        end_s = self._newest_end_s if fresh else now_unix_s
        edges = end_s - span_s * np.linspace(1.0, 0.0, n_cells + 1)
        n_states = len(ActingState if actor_id else LearnerActivity)
        fine, fine_known_s = _mean(self._rows.get((actor_id, "fine")), edges, n_states)
        coarse, coarse_known_s = _mean(self._rows.get((actor_id, "coarse")), edges, n_states)
        # The fine lane counts from its first interval on, even where it has a gap, such as after a lost connection.
        rows = self._rows.get((actor_id, "fine"))
        fine_begin_s = math.inf if rows is None else rows.begin_s
        takes_fine = (edges[:-1] >= fine_begin_s - 1e-3) | (fine_known_s >= coarse_known_s)
        known_s = np.where(takes_fine, fine_known_s, coarse_known_s)
        mean = np.where(takes_fine[:, None], fine, coarse)
        known = known_s >= _KNOWN * span_s / n_cells * (1 - 1e-6)
        return np.where(known[:, None], np.rint(mean), 0.0).astype(np.uint8)

    def mean_shares(self, actor_id: str, *, now_unix_s: float, span_s: float) -> NDArray[np.float64] | None:
        """Returns the share of each state in the known part of the last `span_s` seconds, at most 300 s.

        Returns:
            `[states]`, with the sum 1; None if nothing is known.
        """
        rows = self._rows.get((actor_id, "fine"))
        if rows is None:
            return None
        n_rows = math.ceil((rows.end_s - (now_unix_s - span_s)) / rows.interval_s)
        sums = rows.shares[len(rows.shares) - min(max(n_rows, 0), len(rows.shares)) :].sum(axis=0, dtype=np.float64)
        return sums / sums.sum() if sums.any() else None

    def unheard_s(self, actor_id: str) -> float | None:
        """Returns the seconds from the last known interval of an actor to the end of all lanes.

        Returns:
            Seconds; None if no interval is known.
        """
        for tier in _REMEMBERED:
            rows = self._rows.get((actor_id, tier))
            if rows is not None and rows.shares.any():
                n_known = int(np.flatnonzero(rows.shares.any(axis=1))[-1]) + 1
                return max(self._newest_end_s - (rows.begin_s + rows.interval_s * n_known), 0.0)
        return None


def _appended(rows: _Rows | None, new: _Rows, remembered: int) -> _Rows:
    interval_s = new.interval_s
    if rows is not None and rows.interval_s == interval_s:
        n_missing = round((new.begin_s - rows.end_s) / interval_s)
        if n_missing < 0:
            new = _Rows(interval_s, new.end_s, new.shares[-n_missing:])
        if not len(new.shares):
            return rows
        if n_missing < remembered:
            unknown = np.zeros((max(n_missing, 0), new.shares.shape[1]), np.uint8)
            new = _Rows(interval_s, new.end_s, np.concatenate([rows.shares, unknown, new.shares]))
    return _Rows(interval_s, new.end_s, new.shares[-remembered:])


def _mean(
    rows: _Rows | None, edges: NDArray[np.float64], n_states: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the mean shares in the known time between every two edges, and the known seconds."""
    n_cells = len(edges) - 1
    if rows is None:
        return np.zeros((n_cells, n_states)), np.zeros(n_cells)
    shares = np.column_stack([rows.shares, rows.shares.any(axis=1)]).astype(np.float64)
    sums = np.concatenate([np.zeros((1, n_states + 1)), np.cumsum(shares, axis=0)])
    at = np.clip((edges - rows.begin_s) / rows.interval_s, 0, len(shares))
    whole = np.minimum(at.astype(np.int64), len(shares) - 1)
    until = sums[whole] + (at - whole)[:, None] * shares[whole]
    within = np.diff(until, axis=0)
    known = within[:, -1]
    # At the edges a share of an interval may be a rounding error of the sums.
    means = within[:, :-1] / np.maximum(known, 1e-9)[:, None]
    return np.where(known[:, None] > 1e-6, np.clip(means, 0.0, 255.0), 0.0), known * rows.interval_s
