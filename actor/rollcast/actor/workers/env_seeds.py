"""Derives the seeds of a worker's environments from the worker's seed or seeds."""

from collections.abc import Sequence

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from rollcast.actor.seeds import derive_seed, derive_seeds
from rollcast.actor.vector.atari import AtariVector
from rollcast.actor.vector.base import LockstepVectorEnv
from rollcast.services.errors import ConfigurationError


def seed_each(env_seed: int | Sequence[int], n_envs: int) -> tuple[int, ...]:
    """Returns a seed for each environment.

    Args:
        env_seed: One seed of any size, at least 0, from which the function derives seeds below
            `rollcast.actor.seeds.SEED_LIMIT`. Or one seed for each environment, used unchanged.
        n_envs: The number of environments.

    Raises:
        ConfigurationError: If the number of seeds is neither one nor `n_envs`, or a seed is negative.
    """
    given = _checked(env_seed, n_envs)
    return tuple(derive_seeds(given, n_envs) if _is_one(env_seed) else given)


def seed_vector(env_seed: int | Sequence[int], vector_env: VectorEnv) -> tuple[tuple[int, ...], int | list[int]]:
    """Returns the seed of each environment of a vector, and the `seed` argument for its `reset`.

    The vectors of gymnasium, ALE and rollcast seed each environment. All other vectors have one generator for all
    environments, so they get one seed. This seed is then the seed of every environment.

    Args:
        env_seed: See `seed_each`. The seed of a vector with one generator is derived from all given seeds.
        vector_env: The vector environment.

    Raises:
        ConfigurationError: See `seed_each`.
    """
    if isinstance(vector_env.unwrapped, SyncVectorEnv | AsyncVectorEnv | LockstepVectorEnv | AtariVector):
        seeds = seed_each(env_seed, vector_env.num_envs)
        return seeds, list(seeds)
    seed = derive_seed(*_checked(env_seed, vector_env.num_envs))
    return (seed,) * vector_env.num_envs, seed


def _is_one(env_seed: int | Sequence[int]) -> bool:
    return isinstance(env_seed, int | np.integer)


def _checked(env_seed: int | Sequence[int], n_envs: int) -> list[int]:
    given = [env_seed] if isinstance(env_seed, int | np.integer) else list(env_seed)
    if not _is_one(env_seed) and len(given) != n_envs:
        raise ConfigurationError(
            f"env_seed has {len(given)} seeds; expected {n_envs}, one for each environment; give one for each, or one "
            "number"
        )
    if any(seed < 0 for seed in given):
        raise ConfigurationError(f"env_seed is {env_seed}; expected seeds of at least 0; correct it")
    return [int(seed) for seed in given]
