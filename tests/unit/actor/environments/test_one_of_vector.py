import gymnasium
import numpy as np
import pytest

from rollcast.actor.environments.make import EnvironmentFactory, make_single_env
from rollcast.actor.environments.one_of_vector import OneOfVector
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.stacked_environments import LENGTH, STACKED_ID, SingleEnv


@pytest.mark.parametrize("vectorization", ["auto", "entry_point", "sync", "subprocess", "measure"])
def test_single_environment_has_the_spaces_of_the_actors_vector(vectorization):
    factory = EnvironmentFactory(STACKED_ID, {}, vectorization)
    env = make_single_env(factory)
    assert isinstance(env, OneOfVector) == (vectorization in {"auto", "entry_point"})
    if vectorization not in {"subprocess", "measure"}:  # those have processes
        vector_env = make_vector_env(factory, 2)
        assert environment_spaces(vector_env)[FLAT_SUBSTEP].observation == env.observation_space
        vector_env.close()
    env.close()


def test_arguments_for_the_vector_only_make_a_vector_of_one():
    env = make_single_env(EnvironmentFactory(STACKED_ID, {"n_stacked": 4}))
    assert env.observation_space.shape == (4, 1)
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
def test_same_spaces_give_the_plain_single_environment(env_id):
    env = make_single_env(EnvironmentFactory(env_id))
    assert not isinstance(env, OneOfVector)
    env.close()
    own = make_single_env(SingleEnv)
    assert type(own) is SingleEnv


def test_episode_ends_with_its_last_observation_and_the_next_begins():
    env = make_single_env(EnvironmentFactory(STACKED_ID))
    for _ in range(2):
        observation, _ = env.reset(seed=2**31 - 1)
        seen = [observation]
        for step in range(1, LENGTH + 1):
            observation, reward, terminated, truncated, _ = env.step(np.int64(1))
            seen.append(observation)
            assert (reward, terminated, truncated) == (1.0, step == LENGTH, False)
        assert [shown[:, 0].tolist() for shown in seen] == [[max(0, n - 1), n] for n in range(LENGTH + 1)]
    env.close()


@pytest.mark.parametrize("autoreset_mode", list(gymnasium.vector.AutoresetMode)[:2])
def test_plays_gymnasium_vectors_in_both_reset_modes(autoreset_mode):
    vector_env = gymnasium.vector.SyncVectorEnv([SingleEnv], autoreset_mode=autoreset_mode)
    env = OneOfVector(vector_env)
    env.reset(seed=1)
    for _ in range(LENGTH):
        observation, _, terminated, _, _ = env.step(0)
    assert terminated
    assert observation.tolist() == [LENGTH]
    env.close()
