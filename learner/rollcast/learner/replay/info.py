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
    waiting: tuple[ReplayWaiting, ...]


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
        largest_weight: The largest importance weight of the last batch, before all were divided by it; 1 without.
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
