"""Derives the seeds of environments and agents from the seeds that users set."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from rollcast.services.limits.limits import MAX_ENVS_PER_ACTOR

# Derived seeds are below this limit. Some environments (ALE's vectors) take only signed 32-bit seeds. A vector with one
# seed adds the index of each environment to this seed.
SEED_LIMIT: Final = 2**31 - MAX_ENVS_PER_ACTOR


def derive_seeds(keys: Sequence[int], n: int) -> list[int]:
    """Derives seeds with numpy's SeedSequence.

    Args:
        keys: Numbers on which every derived seed depends, each at least 0.
        n: The number of seeds.

    Returns:
        `n` seeds, at least 0 and below `SEED_LIMIT`. A larger `n` appends seeds.
    """
    words = np.random.SeedSequence(list(keys)).generate_state(n)
    return [int(word) % SEED_LIMIT for word in words]


def derive_seed(*keys: int) -> int:
    """Derives one seed from all keys, at least 0 and below `SEED_LIMIT`."""
    return derive_seeds(keys, 1)[0]
