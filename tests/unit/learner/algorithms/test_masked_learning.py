"""IMPALA, PPO, DQN and SAC learn under action masks, in an environment that raises when one is ignored.

An untrained policy, and whoever plays any allowed key, has a mean return of 0.
"""

import functools
from collections import deque

import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.playing.evaluate import evaluate_policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.ppo import Ppo
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces
from tests.batches import rollout_batch
from tests.masked_environments import MaskedCorridor
from tests.unit.learner.algorithms.replay_list import Actors, ReplayList, train

ENV_ID = "tests.masked_environments:MaskedCorridor"
SPEC = PolicySpec(hidden_sizes=(32,))


@functools.cache
def spaces_of_corridor() -> EnvironmentSpaces:
    vector_env = make_vector_env(EnvironmentFactory(ENV_ID), 1)
    try:
        return environment_spaces(vector_env)
    finally:
        vector_env.close()


def mean_return(algorithm: Algorithm) -> float:
    policy = make_policy(algorithm.policy.spaces, algorithm.policy.spec, seed=0)
    policy.load(1, algorithm.policy_state())
    return evaluate_policy(MaskedCorridor, policy, n_episodes=100, seed=1, deterministic=True).mean


@pytest.mark.slow
def test_untrained_policy_plays_allowed_actions_with_low_return():
    untrained = Impala(spaces_of_corridor(), SPEC, ImpalaSettings(), seed=0)
    policy = make_policy(spaces_of_corridor(), SPEC, seed=0)
    policy.load(1, untrained.policy_state())
    assert evaluate_policy(MaskedCorridor, policy, n_episodes=200, seed=1, deterministic=False).mean < 0.2


@pytest.mark.slow
def test_impala_learns_masked_corridor():
    vector_env = make_vector_env(EnvironmentFactory(ENV_ID), 16)
    impala = Impala(spaces_of_corridor(), SPEC, ImpalaSettings(reward_scale=1.0), seed=0)
    policy = make_policy(spaces_of_corridor(), SPEC, seed=0)
    worker = RolloutWorker(vector_env, policy, 16, actor_id="a", incarnation=1, env_seed=0)
    # Two versions behind, as actors are.
    stale = deque([impala.policy_state()] * 2, maxlen=2)
    try:
        for _ in range(120):
            policy.load(impala.n_updates, stale[0])
            impala.update(rollout_batch(worker.collect()), progress=0.0)
            stale.append(impala.policy_state())
    finally:
        worker.close()
    assert mean_return(impala) > 0.95


@pytest.mark.slow
def test_ppo_learns_masked_corridor():
    ppo = Ppo(spaces_of_corridor(), SPEC, PpoSettings(learning_rate=1e-3), seed=0)
    policy = make_policy(spaces_of_corridor(), SPEC, seed=0)
    vector_env = make_vector_env(EnvironmentFactory(ENV_ID), 16)
    worker = RolloutWorker(vector_env, policy, 16, actor_id="a", incarnation=1, env_seed=0)
    try:
        for _ in range(30):
            policy.load(ppo.n_updates, ppo.policy_state())
            ppo.update(rollout_batch(worker.collect()), progress=0.0)
    finally:
        worker.close()
    assert mean_return(ppo) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dqn", "sac"])
def test_off_policy_algorithms_learn_masked_corridor(kind):
    spaces = spaces_of_corridor()
    algorithm: Algorithm = (
        Dqn(spaces, SPEC, DqnSettings(n_epsilons=2, learning_rate=1e-3, target_tau=0.01), seed=0)
        if kind == "dqn"
        else Sac(spaces, SPEC, SacSettings(target_entropy_ratio=0.3, initial_temperature=0.05), seed=0)
    )
    actors = Actors(algorithm, ENV_ID, n_envs=4, n_rollout_steps=8, seed=0)
    replay = ReplayList(10_000, discount=0.99, alpha=0.6 if kind == "dqn" else 0.0)
    try:
        train(algorithm, actors, replay, n_env_steps=6000, n_initial=500, batch_size=64, updates_per_step=0.25)
    finally:
        actors.close()
    assert mean_return(algorithm) > 0.95
