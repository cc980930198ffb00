"""SAC and DQN learn, from rollouts as actors make them, without a wire and without the real replay buffer."""

import gymnasium
import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.playing.evaluate import evaluate_policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces
from tests.unit.learner.algorithms.replay_list import Actors, ReplayList, train


def spaces_of(env_id: str) -> EnvironmentSpaces:
    vector_env = make_vector_env(EnvironmentFactory(env_id), 1)
    try:
        return environment_spaces(vector_env)
    finally:
        vector_env.close()


def mean_return(algorithm: Algorithm, env_id: str) -> float:
    policy = make_policy(algorithm.policy.spaces, algorithm.policy.spec, seed=0)
    policy.load(1, algorithm.policy_state())
    make = lambda: gymnasium.make(env_id)  # noqa: E731 - a factory, as evaluate_policy wants it
    return evaluate_policy(make, policy, n_episodes=10, seed=1, deterministic=True).mean


# A random policy has a mean return of -1200, one that hangs still and saves its strength no better.
@pytest.mark.slow
def test_sac_swings_the_pendulum_up_within_5k_steps():
    spec = PolicySpec(hidden_sizes=(64, 64), activation="relu")
    sac = Sac(spaces_of("Pendulum-v1"), spec, SacSettings(), seed=0)
    actors = Actors(sac, "Pendulum-v1", n_envs=1, n_rollout_steps=8, seed=0)
    replay = ReplayList(6000, discount=0.99)
    try:
        train(sac, actors, replay, n_env_steps=5000, n_initial=500, batch_size=64, updates_per_step=1.0)
    finally:
        actors.close()
    assert mean_return(sac, "Pendulum-v1") >= -400.0


# A random policy has a mean return of 22.
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n_env_steps"), [("dqn", 16_000), ("sac", 12_000)])
def test_dqn_and_sac_balance_cartpole(kind, n_env_steps):
    spaces = spaces_of("CartPole-v1")
    spec = PolicySpec(activation="relu")
    algorithm: Algorithm = (
        Dqn(spaces, spec, DqnSettings(n_epsilons=2, learning_rate=1e-3, target_tau=0.01), seed=0)  # a short run
        if kind == "dqn"
        else Sac(spaces, spec, SacSettings(target_entropy_ratio=0.5), seed=0)
    )
    actors = Actors(algorithm, "CartPole-v1", n_envs=4, n_rollout_steps=8, seed=0)
    replay = ReplayList(20_000, discount=0.99, n_steps=3, alpha=0.6 if kind == "dqn" else 0.0)
    try:
        train(algorithm, actors, replay, n_env_steps=n_env_steps, n_initial=1000, batch_size=64, updates_per_step=0.25)
    finally:
        actors.close()
    assert mean_return(algorithm, "CartPole-v1") >= 150.0
