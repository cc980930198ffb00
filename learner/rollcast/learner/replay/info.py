"""The numbers that describe a replay buffer and its rate limiter at one moment."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A caller that waits for the rate limiter.

    Attributes:
        reason: What it waits for, with the numbers.
        seconds: How long it has waited.
        who: The name it gave itself; empty if it gave none.
    """

    reason: str
    seconds: float
    who: str = ""

    def __str__(self) -> str:
        """Returns name, reason and duration on one line, for logs."""
        return f"{self.who}{': ' if self.who else ''}{self.reason} for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterInfo:
    """The state of a rate limiter.

    Attributes:
        inserts: Entries inserted so far.
        samples: Entries drawn so far.
        size: Entries in the buffer.
        min_size: Entries that have to be in the buffer before any is drawn, unless it is full before.
        enough: Entries that allow drawing now: `min_size`, or the size at which the first entry had to make room.
        difference: d = inserts * samples_per_insert - samples; 0 without a limit.
        min_diff: Lower bound of d; -inf without a limit.
        max_diff: Upper bound of d; inf without a limit.
        waiting: Callers that wait, in the order in which they came.
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
        """Returns the whole state on one line, for logs and the status."""
        text = (
            f"{self.inserts} inserted, {self.samples} sampled, {self.size} there (at least {self.min_size} to sample)"
        )
        if math.isfinite(self.max_diff):
            text += f", difference {self.difference:g} in [{self.min_diff:g}, {self.max_diff:g}]"
        return "; ".join([text, *(str(one) for one in self.waiting)])


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferInfo:
    """The state of a buffer.

    Attributes:
        size: Entries in the buffer.
        capacity: Entries it holds at most.
        n_bytes: Bytes its arrays take, filled or not.
        inserted: Entries inserted since the start or the last reset.
        sampled: Entries drawn since then.
        ignored_updates: Priorities that came since then for entries that were gone.
        limiter: The state of its rate limiter, with the callers that wait.
    """

    size: int
    capacity: int
    n_bytes: int
    inserted: int
    sampled: int
    ignored_updates: int
    limiter: LimiterInfo
