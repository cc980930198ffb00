"""The seeds of environments and agents, derived from the few that people give."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rollcast.services.limits.limits import MAX_ENVS_PER_ACTOR

# Derived seeds are below this. Some environments take signed 32-bit seeds only (ALE's vectors), and a vector that is
# given one seed counts up from it, one for each of its environments.
SEED_LIMIT: Final = 2**31 - MAX_ENVS_PER_ACTOR


def derive_seeds(keys: Sequence[int], n: int) -> list[int]:
    """Derives seeds with numpy's SeedSequence.

    Args:
        keys: What all of them depend on, each at least 0.
        n: How many.

    Returns:
        `n` seeds, at least 0 and below `SEED_LIMIT`; the first ones are the same whatever `n` is.
    """
    words = np.random.SeedSequence(list(keys)).generate_state(n)
    return [int(word) % SEED_LIMIT for word in words]


def derive_seed(*keys: int) -> int:
    """Derives one seed, at least 0 and below `SEED_LIMIT`, that depends on every key."""
    return derive_seeds(keys, 1)[0]
