"""Derives the seeds of environments and agents from the few that users set."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rollcast.services.limits.limits import MAX_ENVS_PER_ACTOR

# Derived seeds are below this. Some environments (ALE's vectors) take only signed 32-bit seeds, and a vector that gets
# one seed counts up from it, one for each of its environments.
SEED_LIMIT: Final = 2**31 - MAX_ENVS_PER_ACTOR


def derive_seeds(keys: Sequence[int], n: int) -> list[int]:
    """Derives seeds with numpy's SeedSequence.

    Args:
        keys: Numbers that every derived seed depends on, each at least 0.
        n: Number of seeds.

    Returns:
        `n` seeds, at least 0 and below `SEED_LIMIT`. A larger `n` adds seeds and changes none.
    """
    words = np.random.SeedSequence(list(keys)).generate_state(n)
    return [int(word) % SEED_LIMIT for word in words]


def derive_seed(*keys: int) -> int:
    """Derives one seed, at least 0 and below `SEED_LIMIT`, that depends on every key."""
    return derive_seeds(keys, 1)[0]
