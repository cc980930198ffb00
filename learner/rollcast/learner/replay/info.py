"""The numbers that describe a replay buffer and its rate limiter at one moment."""

from dataclasses import dataclass

from rollcast.services.replay.replay import ReplayWaiting


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterInfo:
    """The state of a rate limiter.

    Attributes:
        inserts: Entries inserted so far.
        samples: Entries drawn so far.
        size: Entries in the buffer.
        min_size: Entries that the buffer needs before the first draw, unless it is full with fewer.
        enough: Entries that are enough for a draw now: `min_size`, or the size when the buffer first removed an entry.
        difference: d = inserts * samples_per_insert - samples; 0 without a limit.
        min_diff: Lower bound of d; -inf without a limit.
        max_diff: Upper bound of d; inf without a limit.
        waiting: Waiting callers, in order of arrival.
    """

    inserts: int
    samples: int
    size: int
    min_size: int
    enough: int
    difference: float
    min_diff: float
    max_diff: float
    waiting: tuple[ReplayWaiting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferInfo:
    """The state of a buffer.

    Attributes:
        size: Entries in the buffer.
        capacity: The largest number of entries.
        n_bytes: Bytes of its arrays, filled or not.
        inserted: Entries inserted since the start or the last reset.
        sampled: Entries drawn since the start or the last reset.
        ignored_updates: Priorities for removed entries, since the start or the last reset.
        largest_weight: The largest importance weight of the last batch, before normalisation; 1 without weights.
        limiter: The state of its rate limiter, with the callers that wait.
    """

    size: int
    capacity: int
    n_bytes: int
    inserted: int
    sampled: int
    ignored_updates: int
    largest_weight: float
    limiter: LimiterInfo
