"""How a replay buffer and its rate limiter stand."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One who waits.

    Attributes:
        reason: For what, with the numbers.
        seconds: Since when.
        who: As it calls itself; empty where it does not.
    """

    reason: str
    seconds: float
    who: str = ""

    def __str__(self) -> str:
        """All of it, for logs."""
        return f"{self.who}{': ' if self.who else ''}{self.reason} for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterInfo:
    """How a limiter stands.

    Attributes:
        inserts: Entries inserted so far.
        samples: Entries drawn so far.
        size: Entries there are.
        min_size: Entries there have to be before any is drawn, unless the buffer is full before.
        enough: Entries that are enough: `min_size`, or as many as there were when the first had to make room.
        difference: d = inserts * samples_per_insert - samples; 0 without a limit.
        min_diff: What d may not go below; -inf without a limit.
        max_diff: What d may not go above; inf without a limit.
        waiting: Who waits for what, in the order in which they came.
    """

    inserts: int
    samples: int
    size: int
    min_size: int
    enough: int
    difference: float
    min_diff: float
    max_diff: float
    waiting: tuple[Waiting, ...]

    def __str__(self) -> str:
        """The whole state on one line, for logs and the status."""
        text = (
            f"{self.inserts} inserted, {self.samples} sampled, {self.size} there (at least {self.min_size} to sample)"
        )
        if math.isfinite(self.max_diff):
            text += f", difference {self.difference:g} in [{self.min_diff:g}, {self.max_diff:g}]"
        return "; ".join([text, *(str(one) for one in self.waiting)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayInfo:
    """How a buffer stands.

    Attributes:
        size: Entries there are.
        capacity: Entries it holds at most.
        n_bytes: Bytes its arrays take, whether filled or not.
        inserted: Entries inserted since the start or the last reset.
        sampled: Entries drawn since then.
        ignored_updates: Priorities that came for entries no longer there, since then.
        limiter: How the limiter stands, and who waits.
    """

    size: int
    capacity: int
    n_bytes: int
    inserted: int
    sampled: int
    ignored_updates: int
    limiter: LimiterInfo
