import numpy as np
import pytest
import torch

from actor.environments.make import EnvironmentFactory
from actor.policies.torch_policy import TorchPolicy
from learner.actors.sequential import SequentialDistributedActors
from learner.replay.buffer import ReplayBuffer
from learner.replay.replay_settings import ReplaySettings
from learner.replayed_experience import MAX_TRAJECTORIES, ReplayedExperience
from learner.training_run import probe_spaces
from services.errors import CollectInterruptedError
from services.policies import PolicySpec

T, BATCH = 4, 16


def make_source(**replay: object) -> ReplayedExperience:
    env_factory = EnvironmentFactory("tests.environments:CountingEnv", {})
    policy = TorchPolicy(probe_spaces(env_factory), PolicySpec(hidden_sizes=(4,)))
    actors = SequentialDistributedActors(env_factory, policy, T, 1, 1, envs_per_actor=2)
    buffer = ReplayBuffer(
        ReplaySettings(**{"capacity": 1000, "min_size": 40, **replay}),
        policy.spaces,
        n_rollout_steps=T,
        batch_size=BATCH,
        n_envs=MAX_TRAJECTORIES,
    )
    return ReplayedExperience(actors, buffer, policy=policy, batch_size=BATCH)


def test_it_fills_first_and_then_keeps_the_ratio():
    with make_source(samples_per_insert=4.0, error_buffer=400.0) as source:
        first = source.next("cpu")
        assert first.env_steps == 40, "the minimum, and not more"
        assert first.batch.reward.shape == (1, BATCH)
        steps = first.env_steps
        for _ in range(200):
            experience = source.next("cpu")
            assert len(experience.policy_lag) * T == experience.env_steps
            steps += experience.env_steps
        drawn = 201 * BATCH
        # after the minimum, four samples an insert, give or take the error buffer
        assert abs(4.0 * (steps - 40) - drawn) <= 400 + 4 * 2 * T


def test_actors_are_random_until_the_buffer_is_filled():
    source = make_source(samples_per_insert=4.0, error_buffer=400.0)
    policy = source._policy
    with source:
        assert policy.state_arrays()["exploration.uniform"] == 1
        source.next("cpu")
        assert policy.state_arrays()["exploration.uniform"] == 0


def test_priorities_reach_the_buffer():
    with make_source(sampler="prioritized", samples_per_insert=4.0, error_buffer=400.0) as source:
        batch = source.next("cpu").batch
        assert batch.weights.shape == batch.discount.shape == (BATCH,)
        chosen = batch.keys[0]
        source.learnt(batch, torch.where(torch.from_numpy(batch.keys == chosen), 1e6, 1e-6))
        again = source.next("cpu").batch
        assert np.count_nonzero(again.keys == chosen) > BATCH / 2
        source.learnt(again, None)


def test_a_stop_ends_the_wait():
    with make_source() as source:
        source.actors.interrupt()
        with pytest.raises(CollectInterruptedError):
            source.next("cpu")
