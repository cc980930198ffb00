"""Rounds: rollouts enter when no batch can be drawn, and a policy is cast for each round of all actors."""

import numpy as np

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.experience.replayed import MAX_TRAJECTORIES
from rollcast.learner.experience.replayed_rounds import ReplayedRounds
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.buffers import make_buffer

T, N_ACTORS, N_ENVS, BATCH = 4, 3, 2, 8
ROUND = N_ACTORS * N_ENVS * T


class CountingActors(SequentialDistributedActors):
    """Notes how many rollouts were played before each cast."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.n_played = 0
        self.casts = []

    def broadcast_updated_policy(self, state_dict):
        self.casts.append(self.n_played)
        super().broadcast_updated_policy(state_dict)

    def next_slice(self, max_trajectories, *, enough=1):
        piece = super().next_slice(max_trajectories, enough=enough)
        self.n_played += piece.start == 0
        return piece


def make_rounds() -> ReplayedRounds:
    env_factory = EnvironmentFactory("tests.environments:CountingEnv", {})
    policy = TorchPolicy(probe_spaces(env_factory), PolicySpec(hidden_sizes=(4,)))
    actors = CountingActors(env_factory, policy, T, N_ACTORS, N_ACTORS * N_ENVS, envs_per_actor=N_ENVS)
    buffer = make_buffer(
        policy.spaces,
        n_rollout_steps=T,
        batch_size=BATCH,
        n_envs=MAX_TRAJECTORIES,
        capacity=1000,
        min_size=60,
        samples_per_insert=2.0,
    )
    return ReplayedRounds(
        actors, {FLAT_SUBSTEP: buffer}, policy=policy, policy_state=policy.state_arrays, batch_size=BATCH
    )


def test_a_policy_is_cast_for_each_round_and_at_no_other_time():
    with make_rounds() as source:
        experiences = [source.next("cpu") for _ in range(60)]
        casts = source.actors.casts
        assert casts == [N_ACTORS * i for i in range(len(casts))]
        assert sum(experience.env_steps for experience in experiences) <= ROUND * len(casts)
        assert not np.concatenate([experience.policy_lag for experience in experiences[1:]]).any()


def test_rollouts_enter_only_when_no_batch_can_be_drawn():
    with make_rounds() as source:
        first = source.next("cpu")
        # 60 entries are asked for, of rollouts of 8
        assert first.env_steps == 64
        steps = [source.next("cpu").env_steps for _ in range(200)]
        assert set(steps) == {0, N_ENVS * T}
        assert abs(2 * sum(steps) - 200 * BATCH) <= 2 * first.env_steps, "two samples an insert"


def test_actors_that_begin_anew_begin_another_round():
    with make_rounds() as source:
        source.next("cpu")
        n_casts, n_played = len(source.actors.casts), source.actors.n_played
        assert n_played % N_ACTORS, "in the middle of a round"
        source.renew()
        assert source.actors.casts[n_casts:] == [n_played]
        while len(source.actors.casts) == n_casts + 1:
            source.next("cpu")
        assert source.actors.casts[-1] == n_played + N_ACTORS
