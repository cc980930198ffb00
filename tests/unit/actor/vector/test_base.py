"""Arguments and states that every vector environment refuses; test_sequential and test_subproc compare their values."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.vector.base import LockstepVectorEnv
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.services.errors import ConfigurationError, InvalidSpaceError, RefusedError
from tests.unit.actor.sample_environments import FailingEnv, NestedNumberedEnv, NumberedEnv

ACTIONS = np.zeros(2, np.int64)


@pytest.fixture
def vector_env():
    vector_env = SequentialVectorEnv([NumberedEnv] * 2)
    yield vector_env
    vector_env.close()


def test_rejects_an_empty_list_of_factories():
    with pytest.raises(ConfigurationError, match="env_factories is empty"):
        SequentialVectorEnv([])


def test_rejects_environments_with_different_spaces():
    with pytest.raises(
        InvalidSpaceError, match=r"environment 1 has observation_space .*; expected that of environment 0"
    ):
        SequentialVectorEnv([NumberedEnv, NestedNumberedEnv])


@pytest.mark.parametrize("seeds", [[1], [], [1, -2]])
def test_rejects_a_pool_with_too_few_or_negative_seeds(vector_env: LockstepVectorEnv, seeds: list[int]):
    with pytest.raises(ConfigurationError, match="expected at least 2, one for each environment, none negative"):
        vector_env.seed(seeds)


def test_takes_seeds_from_the_pool_episode_by_episode():
    vector_env = SequentialVectorEnv([lambda: NumberedEnv((1,))] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    vector_env.seed([10, 20, 11, 21])
    for _ in range(2):
        first = vector_env.reset()[0][:, 0]
        second = vector_env.step(ACTIONS)[0][:, 0]
        assert (first.tolist(), second.tolist()) == ([10, 20], [11, 21]), "reset starts the pool over"
    vector_env.close()


def test_seed_of_reset_takes_precedence_over_the_pool(vector_env: LockstepVectorEnv):
    vector_env.seed([10, 20])
    assert vector_env.reset(seed=5)[0][:, 0].tolist() == [5, 6]
    assert vector_env.reset(seed=[7, 9])[0][:, 0].tolist() == [7, 9]


def test_rejects_a_wrong_number_of_seeds(vector_env: LockstepVectorEnv):
    with pytest.raises(ConfigurationError, match="seed has 3 seeds; expected 2"):
        vector_env.reset(seed=[1, 2, 3])


@pytest.mark.parametrize("mask", [[True, False], np.array([True]), np.array([1, 0]), np.array([False, False])])
def test_rejects_a_wrong_reset_mask(vector_env: LockstepVectorEnv, mask):
    with pytest.raises(ConfigurationError, match=r"options\['reset_mask'\] is .*; expected a bool array"):
        vector_env.reset(options={"reset_mask": mask})


@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_call_rejects_methods_that_change_episodes(vector_env: LockstepVectorEnv, name: str):
    with pytest.raises(ConfigurationError, match=rf"use \.{name}\(\)"):
        vector_env.call(name)


def test_set_attr_rejects_a_wrong_number_of_values(vector_env: LockstepVectorEnv):
    with pytest.raises(ConfigurationError, match="values has 3 entries; expected 2"):
        vector_env.set_attr("colour", [1, 2, 3])


def test_refuses_to_step_after_an_environment_failed():
    vector_env = SequentialVectorEnv([NumberedEnv, lambda: FailingEnv(1)])
    vector_env.reset()
    with pytest.raises(EnvironmentFailedError):
        vector_env.step(ACTIONS)
    with pytest.raises(RefusedError, match="has failed before: EnvironmentFailedError: environment 1"):
        vector_env.reset()
    vector_env.close()


def test_refuses_everything_after_close(vector_env: LockstepVectorEnv):
    vector_env.close()
    vector_env.close()
    with pytest.raises(RefusedError, match="is closed"):
        vector_env.reset()


def test_disabled_mode_refuses_to_step_after_an_episode_has_ended():
    vector_env = SequentialVectorEnv([lambda: NumberedEnv((1,)), NumberedEnv], autoreset_mode=AutoresetMode.DISABLED)
    vector_env.reset()
    _, _, terminated, truncated, _ = vector_env.step(ACTIONS)
    with pytest.raises(RefusedError, match=r"the episodes of environments \[0\] have ended"):
        vector_env.step(ACTIONS)
    vector_env.reset(options={"reset_mask": terminated | truncated})
    vector_env.step(ACTIONS)
    vector_env.close()


def test_counts_an_episode_when_it_ends():
    vector_env = SequentialVectorEnv([lambda: NumberedEnv((2,))] * 2)
    vector_env.reset()
    for _ in range(2):
        vector_env.step(ACTIONS)
    assert vector_env.statistics.epoch_stats()["episode_count/epoch"] == 2
    vector_env.close()
