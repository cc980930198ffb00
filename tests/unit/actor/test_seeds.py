import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollcast.actor.seeds import SEED_LIMIT, derive_seed, derive_seeds
from rollcast.actor.vector.make import make_vector_env
from rollcast.services.limits.limits import MAX_ENVS_PER_ACTOR
from tests.environments import CountingEnv
from tests.unit.actor.workers.flat_workers import worker_of

KEYS = st.lists(st.integers(0, 2**64), min_size=1, max_size=4)


@given(KEYS, st.integers(1, 50))
def test_derived_seeds_fit_signed_32_bits_with_room_to_count_up(keys, n):
    seeds = derive_seeds(keys, n)
    assert len(seeds) == n
    assert 0 <= min(seeds) <= max(seeds) < SEED_LIMIT
    assert max(seeds) + MAX_ENVS_PER_ACTOR - 1 <= np.iinfo(np.int32).max


@given(KEYS)
def test_derived_seeds_depend_on_every_key_and_not_on_how_many_are_derived(keys):
    assert derive_seeds(keys, 3)[:1] == derive_seeds(keys, 1) == [derive_seed(*keys)]
    assert derive_seed(*keys) != derive_seed(*keys, 7)


def test_a_worker_seeds_its_environments_below_the_limit_whatever_seed_it_was_given():
    for env_seed in (0, 2**31, 2**32 - 1, 2**40):
        vector_env = make_vector_env(CountingEnv, 40)
        worker = worker_of(vector_env, env_seed=env_seed)
        assert max(worker.env_seeds) < SEED_LIMIT
        assert len(set(worker.env_seeds)) == 40
        worker.close()
