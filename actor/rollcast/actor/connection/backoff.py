"""Computes exponential backoff with full jitter, so that many actors do not reconnect at the same moment."""

import random
from collections.abc import Iterator


def backoff_delays(*, first_s: float = 0.1, factor: float = 2.0, longest_s: float = 5.0) -> Iterator[float]:
    """Yields the delay before each further attempt, in seconds. The iterator never ends.

    "Exponential Backoff And Jitter" (Brooker, 2015), full jitter with a floor of half the delay.

    Args:
        first_s: The first delay's upper bound, in seconds.
        factor: The growth of the upper bound from one attempt to the next.
        longest_s: The largest upper bound, in seconds.
    """
    bound_s = first_s
    while True:
        yield bound_s * random.uniform(0.5, 1.0)
        bound_s = min(bound_s * factor, longest_s)
