"""Tracks which rollouts in the write-ahead log training has used, and which rollouts a checkpoint covers."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from rollcast.learner.queueing.queue import SliceName

# Trajectories `start` to `stop`, the last one excluded.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The rollouts of the log that a checkpoint covers: those with a number below `position` that are not open.

    A rollout is open until training has used all of its trajectories.

    Attributes:
        position: The number of the next rollout at the time of the checkpoint.
        open_runs: First and last number of each run of open rollouts.
        open_spans: The open trajectories of partly used rollouts, by the rollout's number.
    """

    position: int = 0
    open_runs: tuple[tuple[int, int], ...] = ()
    open_spans: Mapping[int, tuple[Span, ...]] = field(default_factory=dict)

    def has(self, first: int, last: int) -> bool:
        """Returns True if the checkpoint covers all rollouts from `first` to `last` completely."""
        return last < self.position and not any(start <= last and first <= stop for start, stop in self.open_runs)

    def open_of(self, number: int, n_trajectories: int) -> tuple[Span, ...]:
        """Returns the open trajectories of a rollout."""
        whole = ((0, n_trajectories),)
        if number >= self.position:
            return whole
        if self.has(number, number):
            return ()
        return self.open_spans.get(number, whole)

    def to_json(self) -> dict[str, Any]:
        """Returns the coverage as JSON values."""
        return {
            "position": self.position,
            "open_runs": self.open_runs,
            "open_spans": {str(number): spans for number, spans in self.open_spans.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any] | None) -> Self:
        """Reads the result of `to_json`; None, for a run without a checkpoint, covers no rollouts.

        Raises:
            ValueError: A number is out of range. Values of other types raise other exceptions.
        """
        if values is None:
            return cls()
        coverage = cls(
            position=values["position"],
            open_runs=tuple((first, last) for first, last in values["open_runs"]),
            open_spans={
                int(number): tuple((start, stop) for start, stop in spans)
                for number, spans in values["open_spans"].items()
            },
        )
        spans = [span for spans in coverage.open_spans.values() for span in spans]
        numbers = [coverage.position, *(number for pair in (*coverage.open_runs, *spans) for number in pair)]
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(f"the checkpoint's coverage of the log is {values!r:.200}; expected whole numbers >= 0")
        if not all(start < stop for start, stop in spans):
            raise ValueError(f"open_spans is {values['open_spans']!r:.200}; expected trajectories in each span")
        return coverage


@dataclass(slots=True)
class _Open:
    """An open rollout in the log."""

    number: int
    n_trajectories: int
    spans: Sequence[Span]


class OpenRollouts:
    """The open rollouts in the log, which training has not used completely. Thread-safe.

    Args:
        position: The number of the next rollout in the log.
    """

    def __init__(self, position: int = 0) -> None:
        self._lock = threading.Lock()  # guards both
        self._position = position
        # By actor, incarnation and sequence; in the order of their numbers.
        self._open: dict[tuple[str, int, int], _Open] = {}

    def add(self, number: int, rollout: SliceName, n_trajectories: int, spans: Sequence[Span] | None = None) -> None:
        """Adds a rollout that is being written to the log, or was found in the log.

        Args:
            number: Its number, above all earlier ones, except at the start.
            rollout: Its name.
            n_trajectories: B.
            spans: Its open trajectories; None: all.
        """
        with self._lock:
            self._position = max(self._position, number + 1)
            self._open[rollout[:3]] = _Open(
                number, n_trajectories, ((0, n_trajectories),) if spans is None else tuple(spans)
            )

    def cover(self, piece: SliceName) -> None:
        """Records that training has used these trajectories, or will never use them."""
        with self._lock:
            known = self._open.get(piece[:3])
            if known is None:
                return
            known.spans = _without(known.spans, piece.start, piece.stop)
            if not known.spans:
                del self._open[piece[:3]]

    def discard(self, rollout: SliceName) -> None:
        """Removes a rollout that the learner does not accept, whether it was written or not. Its actor resends it."""
        with self._lock:
            self._open.pop(rollout[:3], None)

    def coverage(self) -> Coverage:
        """Returns the coverage of a checkpoint taken now."""
        with self._lock:
            still_open = sorted(self._open.values(), key=lambda rollout: rollout.number)
            position = self._position
            spans = {
                rollout.number: tuple(rollout.spans)
                for rollout in still_open
                if tuple(rollout.spans) != ((0, rollout.n_trajectories),)
            }
            runs: list[tuple[int, int]] = []
            for rollout in still_open:
                if runs and runs[-1][1] == rollout.number - 1:
                    runs[-1] = runs[-1][0], rollout.number
                else:
                    runs.append((rollout.number, rollout.number))
        return Coverage(position=position, open_runs=tuple(runs), open_spans=spans)


def _without(spans: Sequence[Span], start: int, stop: int) -> list[Span]:
    """Returns the spans without the trajectories from `start` to `stop`."""
    left = []
    for first, last in spans:
        left += [(a, b) for a, b in ((first, min(last, start)), (max(first, stop), last)) if a < b]
    return left
