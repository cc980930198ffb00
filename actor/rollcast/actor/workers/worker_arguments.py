"""What both kinds of rollout workers make of their arguments."""

from collections.abc import Sequence

import numpy as np

from rollcast.services.errors import ConfigurationError


def checked_seeds(env_seed: int | Sequence[int], n_envs: int) -> list[int]:
    """Returns the seeds that were given: one, from which those of the environments derive, or one for each.

    They may be as large as one likes. Those that derive are below `rollcast.actor.seeds.SEED_LIMIT`; one for each
    environment is given to it as it is.

    Raises:
        ConfigurationError: Another number of them, or one below 0.
    """
    is_one = isinstance(env_seed, int | np.integer)
    given = [env_seed] if isinstance(env_seed, int | np.integer) else list(env_seed)
    if not is_one and len(given) != n_envs:
        raise ConfigurationError(
            f"env_seed has {len(given)} seeds; expected {n_envs}, one for each environment; give as many, or one number"
        )
    if any(seed < 0 for seed in given):
        raise ConfigurationError(f"env_seed is {env_seed}; expected seeds of at least 0; give another")
    return [int(seed) for seed in given]
