import numpy as np
import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.seeds import SEED_LIMIT
from rollcast.actor.vector.make import make_vector_env
from rollcast.actor.workers.env_seeds import seed_each, seed_vector
from rollcast.services.errors import ConfigurationError
from tests.unit.actor.workers.flat_workers import BatchedVectorEnv, numbered_vector, worker_of


def test_derives_a_seed_for_each_environment():
    one, two, other = (worker_of(numbered_vector(), env_seed=seed) for seed in (2**63, 2**63, 1))
    assert one.env_seeds == two.env_seeds
    assert len(set(one.env_seeds)) == 4
    assert not set(one.env_seeds) & set(other.env_seeds)
    rollout = one.collect()
    np.testing.assert_array_equal(rollout.substeps["0"].observation[""][0, :, 0], one.env_seeds)
    vector_env = make_vector_env(EnvironmentFactory("CartPole-v1"), 3)
    assert len(set(worker_of(vector_env).env_seeds)) == 1  # one generator for all of them
    assert worker_of(vector_env, env_seed=[1, 2, 3]).env_seeds != worker_of(vector_env, env_seed=[1, 2, 4]).env_seeds
    vector_env.close()


@pytest.mark.parametrize(
    ("env_seed", "message"),
    [
        ([1, 2], "env_seed has 2 seeds; expected 4"),
        ([1, 2, 3, -4], "expected seeds of at least 0"),
        (-1, "env_seed is -1"),
    ],
)
def test_rejects_wrong_seeds(env_seed, message):
    with pytest.raises(ConfigurationError, match=message):
        worker_of(numbered_vector(), env_seed=env_seed)


def test_uses_given_seeds_as_they_are_for_vectors_that_seed_each_environment():
    vector_env = numbered_vector()
    assert seed_vector([5, 2**70, 0, 7], vector_env) == ((5, 2**70, 0, 7), [5, 2**70, 0, 7])
    assert seed_each([5, 2**70], 2) == (5, 2**70)


def test_a_vector_with_one_generator_gets_one_seed():
    vector_env = BatchedVectorEnv("batched")
    seeds, reset_seed = seed_vector([1, 2], vector_env)
    assert seeds == (reset_seed, reset_seed)
    assert 0 <= reset_seed < SEED_LIMIT


def test_numpy_integers_are_seeds():
    assert seed_each(np.int64(3), 2) == seed_each(3, 2)
