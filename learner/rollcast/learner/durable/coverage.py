"""What of the write-ahead log training has had, and a checkpoint therefore has: by number of the rollout in the log."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rollcast.learner.ingest.queue import SliceName

# Trajectories `start` to `stop`, the last one excluded.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Which rollouts of the log a checkpoint has: those below `position` that are not open.

    Attributes:
        position: The number that the next rollout would have got.
        open_runs: Numbers below it, from the first of each run to its last one, which training had not had.
        open_spans: Of rollouts that it had had in part: their number, and what is open of their trajectories.
    """

    position: int = 0
    open_runs: tuple[tuple[int, int], ...] = ()
    open_spans: Mapping[int, tuple[Span, ...]]

    @classmethod
    def nothing(cls) -> Self:
        """That of a run that has no checkpoint."""
        return cls(open_spans={})

    def has(self, first: int, last: int) -> bool:
        """Whether it has every rollout of these numbers whole."""
        return last < self.position and not any(start <= last and first <= stop for start, stop in self.open_runs)

    def open_of(self, number: int, n_trajectories: int) -> tuple[Span, ...]:
        """What of a rollout is open."""
        whole = ((0, n_trajectories),)
        if number >= self.position:
            return whole
        if self.has(number, number):
            return ()
        return self.open_spans.get(number, whole)

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "position": self.position,
            "open_runs": self.open_runs,
            "open_spans": {str(number): spans for number, spans in self.open_spans.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` made.

        Raises:
            ValueError: A number is none that it makes; and whatever comes of values of other types.
        """
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
            raise ValueError(f"what a checkpoint has of the log is {values!r:.200}; expected whole numbers from 0 on")
        if not all(start < stop for start, stop in spans):
            raise ValueError(f"open_spans is {values['open_spans']!r:.200}; expected trajectories in each")
        return coverage


@dataclass(slots=True)
class _Open:
    """A rollout in the log that training has not had whole."""

    number: int
    n_trajectories: int
    spans: Sequence[Span]


class OpenRollouts:
    """Keeps account of the rollouts in the log that training has not had. Any thread may call.

    Args:
        position: The number that the next rollout in the log gets.
    """

    def __init__(self, position: int = 0) -> None:
        self._lock = threading.Lock()  # guards both
        self._position = position
        # By actor, incarnation and sequence; in the order of their numbers.
        self._open: dict[tuple[str, int, int], _Open] = {}

    def add(self, number: int, rollout: SliceName, n_trajectories: int, spans: Sequence[Span] | None = None) -> None:
        """A rollout is being written to the log.

        Args:
            number: Its number, above all before it, but for those that were found at the start.
            rollout: Which.
            n_trajectories: B.
            spans: What of it is open; None: all.
        """
        with self._lock:
            self._position = max(self._position, number + 1)
            self._open[rollout[:3]] = _Open(
                number, n_trajectories, ((0, n_trajectories),) if spans is None else tuple(spans)
            )

    def cover(self, piece: SliceName) -> None:
        """Training has had these trajectories, or will never want them."""
        with self._lock:
            known = self._open.get(piece[:3])
            if known is None:
                return
            known.spans = _without(known.spans, piece.start, piece.stop)
            if not known.spans:
                del self._open[piece[:3]]

    def discard(self, rollout: SliceName) -> None:
        """A rollout was written to the log, or not, and is not accepted: its actor will send it again."""
        with self._lock:
            self._open.pop(rollout[:3], None)

    def coverage(self) -> Coverage:
        """What a checkpoint that is taken now has."""
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
    """What is left of spans when trajectories are taken out."""
    left = []
    for first, last in spans:
        left += [(a, b) for a, b in ((first, min(last, start)), (max(first, stop), last)) if a < b]
    return left
