"""IMPALA, PPO and APPO learn, from rollouts as actors make them, without a wire in between."""

from collections import deque
from statistics import fmean

import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.make import make_policy
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.learner.algorithms.appo import Appo
from rollcast.learner.algorithms.appo_settings import AppoSettings
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.ppo import Ppo
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.services.policies.policies import PolicySpec
from tests.batches import rollout_batch


# Reset rows with the one, final observations with the other. An untrained policy has a mean return of 22.
@pytest.mark.slow
@pytest.mark.parametrize(("vectorization", "n_envs", "seed"), [("entry_point", 64, 0), ("sync", 32, 1)])
def test_impala_balances_cartpole_within_400k_steps(vectorization, n_envs, seed):
    vector_env = make_vector_env(EnvironmentFactory("CartPole-v1", {}, vectorization), n_envs)
    spaces = environment_spaces(vector_env)
    policy = make_policy(spaces, PolicySpec(), seed=seed)
    worker = RolloutWorker(vector_env, policy, 16, actor_id="a", incarnation=1, env_seed=seed)
    algorithm = Impala(spaces, PolicySpec(), ImpalaSettings(), seed=seed)
    returns: deque[float] = deque(maxlen=50)
    env_steps, stale = 0, deque([algorithm.policy_state()] * 2, maxlen=2)
    try:
        while env_steps < 400_000 and (len(returns) < 50 or fmean(returns) < 300.0):
            # Two versions behind, as actors are.
            policy.load(algorithm.n_updates, stale[0])
            rollout = worker.collect()
            algorithm.update(rollout_batch(rollout), progress=0.0)
            stale.append(algorithm.policy_state())
            env_steps += rollout.n_env_steps
            returns.extend(episode.episode_return for episode in rollout.episodes)
    finally:
        worker.close()
    assert fmean(returns) >= 300.0


@pytest.mark.slow
def test_ppo_balances_cartpole_within_60k_steps():
    vector_env = make_vector_env(EnvironmentFactory("CartPole-v1", {}, "entry_point"), 16)
    spaces = environment_spaces(vector_env)
    policy = make_policy(spaces, PolicySpec(), seed=0)
    worker = RolloutWorker(vector_env, policy, 128, actor_id="a", incarnation=1, env_seed=0)
    algorithm = Ppo(spaces, PolicySpec(), PpoSettings(), seed=0)
    returns: deque[float] = deque(maxlen=50)
    env_steps = 0
    try:
        while env_steps < 60_000 and (len(returns) < 50 or fmean(returns) < 300.0):
            policy.load(algorithm.n_updates, algorithm.policy_state())
            rollout = worker.collect()
            algorithm.update(rollout_batch(rollout), progress=env_steps / 60_000)
            env_steps += rollout.n_env_steps
            returns.extend(episode.episode_return for episode in rollout.episodes)
    finally:
        worker.close()
    assert fmean(returns) >= 300.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_appo_balances_cartpole_within_120k_steps_from_rollouts_three_versions_old(seed: int):
    vector_env = make_vector_env(EnvironmentFactory("CartPole-v1", {}, "entry_point"), 16)
    spaces = environment_spaces(vector_env)
    policy = make_policy(spaces, PolicySpec(), seed=seed)
    worker = RolloutWorker(vector_env, policy, 128, actor_id="a", incarnation=1, env_seed=seed)
    algorithm = Appo(spaces, PolicySpec(), AppoSettings(), seed=seed)
    returns: deque[float] = deque(maxlen=50)
    env_steps, stale = 0, deque([algorithm.policy_state()] * 4, maxlen=4)
    try:
        while env_steps < 120_000 and (len(returns) < 50 or fmean(returns) < 300.0):
            policy.load(algorithm.n_updates, stale[0])
            rollout = worker.collect()
            metrics = algorithm.update(rollout_batch(rollout), progress=env_steps / 120_000)
            stale.append(algorithm.policy_state())
            env_steps += rollout.n_env_steps
            returns.extend(episode.episode_return for episode in rollout.episodes)
    finally:
        worker.close()
    assert fmean(returns) >= 300.0
    assert float(metrics["stale_kl"]) > 0.0
