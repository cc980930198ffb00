"""The progress of training reaches environments, whatever steps them."""

import gc

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.environments.structured import SingleAgentEnv
from rollcast.actor.playing.evaluate import evaluate_policy
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.vector.make import make_vector_env, probe_spaces, set_progress
from rollcast.actor.vector.structured import StructuredVectorEnv
from tests.environments import CountingEnv, ProgressEnv
from tests.unit.actor.workers.flat_workers import BatchedVectorEnv, worker_of


def wrapped(**env_kwargs: object) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(ProgressEnv(**env_kwargs), 100)


def structured(**env_kwargs: object) -> SingleAgentEnv:
    return SingleAgentEnv(wrapped(**env_kwargs))


def factory(vectorization: str, **env_kwargs: object) -> EnvironmentFactory:
    name = "structured" if vectorization == "structured" else "wrapped"
    vectorization = "auto" if vectorization == "structured" else vectorization
    return EnvironmentFactory(f"{__name__}:{name}", env_kwargs, vectorization=vectorization)


@pytest.mark.parametrize("vectorization", ["sync", "subprocess", "structured"])
def test_environments_are_told_before_each_rollout(vectorization: str):
    worker = worker_of(make_vector_env(factory(vectorization), 3))
    try:
        for progress in (0.0, 0.25, 0.25, 1.0):
            worker.set_progress(progress)
            assert (worker.collect().reward == progress).all()
    finally:
        worker.close()


@pytest.mark.parametrize("vectorization", ["sync", "subprocess", "structured"])
def test_what_it_raises_is_a_failure_of_that_environment(vectorization: str):
    vector_env = make_vector_env(factory(vectorization, raises_from=0.5), 2)
    try:
        set_progress(vector_env, 0.25)
        with pytest.raises(
            EnvironmentFailedError, match=r"environment 0 .*ValueError in set_progress\(\): no level for 0.5"
        ):
            set_progress(vector_env, 0.5)
    finally:
        vector_env.close()


def test_what_it_raises_can_be_collected_as_garbage():
    vector_env = make_vector_env(factory("subprocess", raises_from=0.5), 2)
    try:
        set_progress(vector_env, 0.5)
    except EnvironmentFailedError as error:
        error.itself = error  # a cycle, in which a view of a BytesIO crashed CPython 3.12.1
    finally:
        vector_env.close()
    gc.collect()


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
def test_environments_that_do_not_ask_are_not_told(vectorization: str):
    vector_env = make_vector_env(EnvironmentFactory("tests.environments:CountingEnv", vectorization=vectorization), 2)
    try:
        set_progress(vector_env, 0.5)
        vector_env.reset(seed=0)
    finally:
        vector_env.close()
    StructuredVectorEnv([lambda: SingleAgentEnv(CountingEnv())]).set_progress(0.5)


class OwnVector(BatchedVectorEnv):
    """A vector of its own, with one progress for all."""

    progress: float | None = None

    def set_progress(self, progress: float) -> None:
        if progress > 0.5:
            raise ValueError("too far")
        self.progress = progress


def test_a_registered_vector_is_told_itself():
    vector_env = OwnVector("batched")
    set_progress(gymnasium.vector.VectorWrapper(vector_env), 0.5)
    assert vector_env.progress == 0.5
    with pytest.raises(EnvironmentFailedError, match=r"ValueError in set_progress\(\): too far"):
        set_progress(vector_env, 0.75)
    set_progress(VectorEnv(), 0.5)


def test_evaluation_plays_the_whole_task():
    policy = RandomPolicy(probe_spaces(factory("sync")), seed=0)
    evaluation = evaluate_policy(factory("sync"), policy, n_episodes=2, seed=0, deterministic=False)
    assert np.allclose(evaluation.returns, 5.0)
