"""Two substeps learn at once, from batches as trainers get them, with agents that act seldom among them."""

import pytest

from rollcast.actor.policies.make import make_policy
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.independent_learners import IndependentLearners
from rollcast.learner.experience.experience import ExperienceSource, FreshExperience
from rollcast.learner.experience.replayed import MAX_TRAJECTORIES, ReplayedExperience
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.replay.substeps import make_buffers
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces
from tests.two_substeps import SPACES, TwoSubstepActors, TwoSubsteps

SPEC = PolicySpec(hidden_sizes=(16,))
T = 8


def make(kind: str, spaces: EnvironmentSpaces, *, seed: int) -> Algorithm:
    if kind == "impala":
        return Impala(spaces, SPEC, ImpalaSettings(learning_rate=1e-2, reward_scale=1.0), seed=seed)
    return Dqn(spaces, SPEC, DqnSettings(learning_rate=3e-3, n_epsilons=1), seed=seed)


def make_source(kind: str, algorithm: Algorithm) -> ExperienceSource:
    if kind == "impala":
        return FreshExperience(TwoSubstepActors(algorithm.policy, T, 16))
    replay = ReplaySettings(capacity=5000, min_size=200, samples_per_insert=4.0)
    buffers = make_buffers(replay, SPACES, n_rollout_steps=T, batch_size=64, n_envs=MAX_TRAJECTORIES)
    actors = TwoSubstepActors(algorithm.policy, T, 1)
    return ReplayedExperience(actors, buffers, policy=algorithm.policy, batch_size=64)


def mean_rewards(algorithm: Algorithm) -> dict[str, float]:
    """Returns the reward of each substep a step."""
    policy = make_policy(SPACES, algorithm.policy.spec, seed=1)
    policy.load(1, algorithm.policy_state())
    world = TwoSubsteps(50, 4, seed=9, padding=0.0)
    return {rollout.substep_key: float(rollout.reward.mean()) for rollout in (world.play(policy) for _ in SPACES)}


# Random actions earn 0.5 and 0.25. Everyone explores a little even at the end.
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n_updates"), [("impala", 150), ("dqn", 400)])
def test_both_substeps_learn_the_rewarded_actions(kind: str, n_updates: int):
    algorithm = IndependentLearners(SPACES, lambda spaces, *, seed: make(kind, spaces, seed=seed), seed=0)
    before = mean_rewards(algorithm)
    assert before["scout"] < 0.7
    assert before["base"] < 0.6
    with make_source(kind, algorithm) as source:
        while algorithm.n_updates < n_updates:
            batch = source.next("cpu").batch
            algorithm.update(batch, progress=0.0)
            source.learnt(batch, algorithm.priorities)
            source.actors.broadcast_updated_policy(algorithm.policy_state())
    after = mean_rewards(algorithm)
    assert after["scout"] > 0.85, after
    assert after["base"] > 0.85, after
