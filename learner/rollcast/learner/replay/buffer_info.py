"""How a replay buffer stands."""

from dataclasses import dataclass

from rollcast.learner.replay.limiter.limiter_state import LimiterState


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
    limiter: LimiterState
