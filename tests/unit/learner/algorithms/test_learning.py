"""Every algorithm learns from rollouts as actors make them, without a wire in between."""

import math
from collections import deque
from statistics import fmean

import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.playing.evaluate import evaluate_policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.vector.make import environment_spaces, make_vector_env, probe_spaces
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.experience.replayed import MAX_TRAJECTORIES, ReplayedExperience
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.replay.substeps import make_buffers
from rollcast.services.policies.policies import PolicySpec
from tests.batches import rollout_batch
from tests.every_algorithm import make_algorithm

pytestmark = pytest.mark.slow

SMALL = PolicySpec(hidden_sizes=(32,))


# As in the recipe for this task: few passes of small minibatches take most of the time.
QUICK = {"n_epochs": 20, "minibatch_steps": 256, "learning_rate": 1e-3, "discount": 0.98}


# An untrained policy has a mean return of 22.
@pytest.mark.parametrize(
    ("name", "settings", "n_envs", "n_steps", "versions_behind", "most_env_steps"),
    [
        ("impala", {}, 64, 16, 2, 200_000),
        ("ppo", QUICK, 8, 32, 0, 40_000),
        ("appo", QUICK, 8, 32, 3, 60_000),
    ],
    ids=["impala", "ppo", "appo"],
)
def test_balances_cartpole(
    name: str, settings: dict[str, float], n_envs: int, n_steps: int, versions_behind: int, most_env_steps: int
):
    vector_env = make_vector_env(EnvironmentFactory("CartPole-v1", {}, "entry_point"), n_envs)
    algorithm = make_algorithm(name, environment_spaces(vector_env), PolicySpec(), **settings)
    policy = make_policy(algorithm.policy.spaces, PolicySpec(), seed=0)
    worker = RolloutWorker(vector_env, policy, n_steps, actor_id="a", incarnation=1, env_seed=0)
    returns: deque[float] = deque(maxlen=50)
    env_steps, stale = 0, deque([algorithm.policy_state()] * (versions_behind + 1), maxlen=versions_behind + 1)
    try:
        while env_steps < most_env_steps and (len(returns) < 50 or fmean(returns) < 100.0):
            policy.load(algorithm.n_updates, stale[0])
            rollout = worker.collect()
            algorithm.update(rollout_batch(rollout), progress=env_steps / most_env_steps)
            stale.append(algorithm.policy_state())
            env_steps += rollout.n_env_steps
            returns.extend(episode.episode_return for episode in rollout.episodes)
    finally:
        worker.close()
    assert fmean(returns) >= 100.0


OF_LEARNERS = {
    "dqn": {"n_epsilons": 2, "learning_rate": 1e-3, "target_tau": 0.01},
    "sac": {"initial_temperature": 0.05, "target_entropy_ratio": 0.3},
}


# An untrained policy, and whoever plays any allowed key, has a mean return of 0 in the corridor; one that moves at
# random is off by 0.67 in each of eight steps of the other.
@pytest.mark.parametrize(
    ("name", "env_id", "bar"),
    [
        ("dqn", "tests.masked_environments:MaskedCorridor", 0.9),
        ("sac", "tests.masked_environments:MaskedCorridor", 0.9),
        ("sac", "tests.environments:Reaching", -8 * 0.25),
    ],
)
def test_learns_from_a_replay_buffer(name: str, env_id: str, bar: float):
    factory = EnvironmentFactory(env_id)
    spaces = probe_spaces(factory)
    algorithm = make_algorithm(name, spaces, SMALL, **OF_LEARNERS[name])
    actors = SequentialDistributedActors(factory, algorithm.policy, 8, 1, 1, envs_per_actor=4)
    replay = ReplaySettings(capacity=10_000, min_size=500, samples_per_insert=16.0)
    buffers = make_buffers(replay, spaces, n_rollout_steps=8, batch_size=64, n_envs=MAX_TRAJECTORIES)
    with ReplayedExperience(actors, buffers, policy=algorithm.policy, batch_size=64) as source:
        mean = -math.inf
        while algorithm.n_updates < 2500 and mean < bar:
            batch = source.next("cpu").batch
            algorithm.update(batch, progress=algorithm.n_updates / 2500)
            source.learnt(batch, algorithm.priorities)
            actors.broadcast_updated_policy(algorithm.policy_state())
            if algorithm.n_updates % 250 == 0:
                mean = mean_return(algorithm, factory)
    assert mean >= bar


def mean_return(algorithm: Algorithm, factory: EnvironmentFactory) -> float:
    policy = make_policy(algorithm.policy.spaces, algorithm.policy.spec, seed=0)
    policy.load(1, algorithm.policy_state())
    return evaluate_policy(factory, policy, n_episodes=50, seed=1, deterministic=True).mean
