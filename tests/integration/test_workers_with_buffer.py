"""Workers with a buffer: every kind of actors passes what depends on it."""

import functools

import numpy as np
import pytest
import torch

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.statistics.events import EpisodeEvents, LogStatsLevel
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.actors.subproc import SubprocDistributedActors
from rollcast.learner.actors.with_buffer import BaseDistributedWorkersWithBuffer
from rollcast.learner.algorithms.trajectories import sequence_starts
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.errors import CollectTimeoutError, ConfigurationError, InvalidInputError, NotReadyError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.actor_kinds import RemoteWithProcesses
from tests.processes import DEADLINE_S
from tests.two_substeps import SPACES

pytestmark = pytest.mark.slow

MAKE_WORKERS = {
    "sequential": functools.partial(SequentialDistributedActors, envs_per_actor=2),
    "subproc": functools.partial(
        SubprocDistributedActors, envs_per_actor=2, serving=ServingOptions(collect_timeout_s=DEADLINE_S)
    ),
}


def make_remote(env_factory, policy, n_rollout_steps, n_actors, batch_size, *, actor_env_seeds):
    del actor_env_seeds  # whoever dials in is given its seeds by the learner
    return RemoteWithProcesses(
        env_factory,
        policy,
        n_rollout_steps,
        batch_size,
        n_actors=n_actors,
        envs_per_actor=2,
        serving=ServingOptions(addresses=("127.0.0.1:0",), collect_timeout_s=DEADLINE_S),
    )


MAKE_WORKERS["remote"] = make_remote


def make_workers(kind: str, **changes: object) -> BaseDistributedWorkersWithBuffer:
    env_factory = EnvironmentFactory("tests.environments:CountingEnv", {})
    given = {
        "env_factory": env_factory,
        "worker_policy": TorchPolicy(probe_spaces(env_factory), PolicySpec(hidden_sizes=(8,))),
        "n_rollout_steps": 4,
        "n_workers": 2,
        "batch_size": 8,
        "rollouts_per_iteration": 3,
        "initial_sampling_policy": None,
        "replay_buffer_size": 200,
        "initial_buffer_size": 40,
        "split_rollouts_into_transitions": True,
        "env_instance_seeds": None,
        "replay_buffer_seed": 0,
        "make_workers": MAKE_WORKERS[kind],
    }
    return BaseDistributedWorkersWithBuffer(**(given | changes))


@pytest.mark.parametrize(("kind", "device"), [("sequential", "cpu"), ("remote", "learner")])
def test_transitions_have_their_true_next_observation(kind: str, device: str):
    with make_workers(kind, replay=ReplaySettings(device=device)) as workers:
        for _ in range(10):
            before, after, seconds = workers.collect_rollouts()
            assert before >= 0
            assert after >= 0
            assert seconds > 0
        for _ in range(20):
            batch = workers.sample_batch("cpu")
            columns = batch.substeps[FLAT_SUBSTEP]
            assert batch.reward.shape == (1, 8)
            assert columns.observation[""].shape == (1, 8, 4)
            assert columns.last_observation[""].shape == (8, 4)
            # an episode has five steps; the observation after step n is n, the last one included
            steps, following = columns.observation[""][0, :, 1], columns.last_observation[""][:, 1]
            np.testing.assert_array_equal(following, steps + 1)
            np.testing.assert_array_equal(batch.reward[0], steps + 1)
            np.testing.assert_array_equal(batch.terminated[0], steps == 4)


def test_whole_rollouts_bring_the_recurrent_states_that_the_policy_acted_with():
    spaces = probe_spaces(EnvironmentFactory("tests.environments:CountingEnv", {}))
    policy = TorchPolicy(spaces, PolicySpec(hidden_sizes=(8,), recurrence="lstm", recurrent_size=3))
    options = {"split_rollouts_into_transitions": False, "initial_buffer_size": 20}
    replay = ReplaySettings(device="learner", entry="rollouts", sequence_length=3, burn_in=1)
    state = policy.state_arrays()
    options |= {"worker_policy": policy, "initial_sampling_policy": state, "replay": replay}
    with make_workers("remote", **options) as workers:
        batch = workers.sample_batch("cpu")
    columns = batch.substeps[FLAT_SUBSTEP]
    assert batch.burn_in == 1
    assert columns.initial_state.any(dim=1).any()
    observation = {path: leaf.flatten(0, 1) for path, leaf in columns.observation.items()}
    with torch.no_grad():
        parameters, _ = policy.unroll(observation, columns.initial_state, sequence_starts(batch))
    log_prob = parameters.log_softmax(dim=1).gather(1, columns.action.view(-1, 1)).view_as(columns.log_prob)
    torch.testing.assert_close(log_prob, columns.log_prob, rtol=0, atol=1e-5)


def test_collects_given_number_of_rollouts_per_call():
    with make_workers("sequential") as workers:
        before = workers.buffer.info().inserted
        workers.collect_rollouts()
        assert workers.buffer.info().inserted == before + 3 * 4


def test_initial_fill_is_random_and_has_separate_statistics():
    with make_workers("subproc", n_rollout_steps=20, batch_size=32, initial_buffer_size=160) as workers:
        batch = workers.sample_batch("cpu")
        actions = batch.substeps[FLAT_SUBSTEP].action.numpy()
        assert 4 <= actions.sum() <= 28, "uniform over both actions"
        assert workers.initial_statistics.get_stats_value(
            EpisodeEvents.episode_return, LogStatsLevel.EPOCH, "mean"
        ) == pytest.approx(15.0)
        while True:
            workers.collect_rollouts()
            if "episode_return/mean" in workers.get_epoch_stats_aggregator().epoch_stats():
                break
        assert workers.get_stats_value(EpisodeEvents.episode_return, LogStatsLevel.EPOCH, "mean") == 15.0


@pytest.mark.parametrize("kind", MAKE_WORKERS)
def test_training_statistics_exclude_episodes_of_the_initial_policy(kind: str):
    env_factory = EnvironmentFactory("tests.environments:ActionRewardEnv", {"n_steps": 7})
    policy = TorchPolicy(probe_spaces(env_factory), PolicySpec(hidden_sizes=(8,)))
    bias = [parameter for parameter in policy.parameters() if parameter.shape == (2,)][-1]
    for parameter in policy.parameters():
        parameter.data.zero_()
    bias.data[1] = 50.0
    always_1 = {name: array.copy() for name, array in policy.state_arrays().items()}
    bias.data[:] = torch.tensor([50.0, 0.0])
    workers = make_workers(
        kind, env_factory=env_factory, worker_policy=policy, n_rollout_steps=3, initial_sampling_policy=always_1
    )
    with workers:
        for _ in range(20):
            workers.collect_rollouts()
        assert workers.get_stats_value(EpisodeEvents.episode_return, LogStatsLevel.EPOCH, "max") == 0.0
        initial = workers.initial_statistics
        assert initial.get_stats_value(EpisodeEvents.episode_return, LogStatsLevel.EPOCH, "min") > 0.0


def test_initial_fill_ends_when_short_episodes_fill_the_ring_below_capacity():
    env_factory = EnvironmentFactory("tests.environments:CountingEnv", {"n_steps": 2})
    with make_workers("sequential", env_factory=env_factory, initial_buffer_size=200) as workers:
        assert 100 <= workers.buffer.size < 200
        workers.collect_rollouts()
        workers.sample_batch("cpu")


def test_initial_fill_without_entries_ends_at_its_timeout(monkeypatch: pytest.MonkeyPatch):
    workers = make_workers("sequential")
    workers.actors.collect_timeout_s = 0.05
    monkeypatch.setattr(workers.buffer, "insert", lambda rollout: 0)
    with pytest.raises(CollectTimeoutError, match=r"no entry for 0\.05 s: the replay buffer lacks 40 of 40"):
        workers.start()
    workers.stop()


@pytest.mark.parametrize("size", [7, 201])
def test_rejects_impossible_initial_size(size: int):
    with pytest.raises(ConfigurationError, match=f"initial_buffer_size is {size}; expected from batch_size 8 to"):
        make_workers("sequential", initial_buffer_size=size)


def test_rejects_several_substeps():
    with pytest.raises(ConfigurationError, match=r"has the substeps \['scout', 'base'\]; expected one"):
        make_workers("sequential", worker_policy=TorchPolicy(SPACES, PolicySpec()))


def policy_of(**spec: object) -> TorchPolicy:
    spaces = probe_spaces(EnvironmentFactory("tests.environments:CountingEnv", {}))
    return TorchPolicy(spaces, PolicySpec(hidden_sizes=(8,), **spec))


def test_refuses_policy_whose_states_a_buffer_does_not_keep():
    with pytest.raises(ConfigurationError, match="the policy has recurrence gru, and a replay buffer keeps no"):
        make_workers("sequential", worker_policy=policy_of(recurrence="gru"))


def test_error_of_empty_buffer_has_advice():
    with make_workers("sequential", initial_buffer_size=0) as workers:
        with pytest.raises(NotReadyError, match="holds 0 entries, fewer than batch_size 8: call init_replay_buffer"):
            workers.collect_rollouts()
        with pytest.raises((InvalidInputError, NotReadyError), match="0"):
            workers.sample_batch("cpu")
        workers.init_replay_buffer(None, 40, 1)
        assert workers.buffer.size >= 40
        workers.collect_rollouts()
