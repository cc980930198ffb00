"""Derives the seeds of a worker's environments from the seed, or the seeds, that the worker was given."""

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
        env_seed: One seed of any size, at least 0, from which the others are derived, below
            `rollcast.actor.seeds.SEED_LIMIT`; or one for each environment, used as it is.
        n_envs: Number of environments.

    Raises:
        ConfigurationError: If the number of seeds is neither one nor `n_envs`, or a seed is negative.
    """
    given = _checked(env_seed, n_envs)
    return tuple(derive_seeds(given, n_envs) if _is_one(env_seed) else given)


def seed_vector(env_seed: int | Sequence[int], vector_env: VectorEnv) -> tuple[tuple[int, ...], int | list[int]]:
    """Returns the seed of each environment of a vector, and the `seed` to call its `reset` with.

    gymnasium's vectors, ALE's and ours seed each of their environments. All others draw for all environments from one
    generator, so they get one seed, and every environment is listed with it.

    Args:
        env_seed: As for `seed_each`. A vector with one generator derives its seed from all of them.
        vector_env: The vector environment.

    Raises:
        ConfigurationError: As for `seed_each`.
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
            f"env_seed has {len(given)} seeds; expected {n_envs}, one for each environment; give as many, or one number"
        )
    if any(seed < 0 for seed in given):
        raise ConfigurationError(f"env_seed is {env_seed}; expected seeds of at least 0; give another")
    return [int(seed) for seed in given]
