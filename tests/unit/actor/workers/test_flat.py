import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.rollouts import EpisodeStatistics
from rollcast.services.spaces.spaces import space_leaves
from tests.rollouts import only_leaf, transitions_of
from tests.unit.actor.acting_policies import loaded
from tests.unit.actor.sample_environments import (
    ACTION_SPACES,
    IMAGE_SPACES,
    OBSERVATION_SPACES,
    NestedNumberedEnv,
    NumberedEnv,
    SampledEnv,
)
from tests.unit.actor.workers.flat_workers import (
    LENGTHS,
    NEXT,
    SAME,
    BatchedVectorEnv,
    numbered_vector,
    vector_of,
    worker_of,
)


def played(seed, lengths, n):
    """Returns n steps of a NumberedEnv: tuples (observation, next observation, reward, terminated, truncated)."""
    steps = (
        ((seed, k, s), (seed, k, s + 1), s + 1.0, s + 1 == length and k % 2 == 0, s + 1 == length and k % 2 == 1)
        for k, length in enumerate(itertools.cycle(lengths))
        for s in range(length)
    )
    return list(itertools.islice(steps, n))


def read_nested(observation, index):
    when = observation["when/0"][index], observation["when/1"][index].item()
    return tuple(float(part) for part in (observation["name"][index], *when))


@pytest.mark.parametrize("mode", [SAME, NEXT])
@pytest.mark.parametrize(("kind", "read"), [(NumberedEnv, only_leaf), (NestedNumberedEnv, read_nested)])
@pytest.mark.parametrize("n_rollout_steps", [1, 2, 5, 16])
def test_records_true_transitions_and_episodes_across_rollouts(mode, kind, read, n_rollout_steps):
    worker = worker_of(numbered_vector(kind, mode), n_rollout_steps, env_seed=[7, 5, 3, 1])
    rollouts = [worker.collect() for _ in range(64 // n_rollout_steps)]
    n_valid = 0
    for b, (seed, lengths) in enumerate(zip((7, 5, 3, 1), LENGTHS, strict=True)):
        trajectory = [step for rollout in rollouts for step in transitions_of(rollout, b, read)]
        assert trajectory == played(seed, lengths, len(trajectory))
        assert len(trajectory) == n_rollout_steps * len(rollouts) if mode is SAME else len(trajectory) >= 30
        n_valid += len(trajectory)
        episodes = [episode for rollout in rollouts for episode in rollout.episodes if episode.env_index == b]
        assert len(episodes) == sum(terminated or truncated for *_, terminated, truncated in trajectory)
        assert episodes == [
            EpisodeStatistics(env_index=b, episode_return=float(sum(range(1, n + 1))), n_steps=n)
            for n in itertools.islice(itertools.cycle(lengths), len(episodes))
        ]
    assert sum(rollout.n_env_steps for rollout in rollouts) == n_valid
    if mode is SAME:
        assert all(rollout.valid is None for rollout in rollouts)
    worker.close()


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_continues_without_a_gap_after_a_stopped_rollout(mode):
    stopped_worker = worker_of(numbered_vector(mode=mode), 5, env_seed=[7, 5, 3, 1])
    assert stopped_worker.collect() is not None
    calls = itertools.count()
    assert stopped_worker.collect(lambda: next(calls) == 3) is None
    assert stopped_worker.collect(lambda: True) is None
    after = stopped_worker.collect(lambda: False)
    assert after.sequence == 2
    # 5 + 3 rows are gone; the same environments, not stopped, are in the same place after 8.
    other = worker_of(numbered_vector(mode=mode), 8, env_seed=[7, 5, 3, 1])
    other.collect()
    other_after = other.collect()
    np.testing.assert_array_equal(after.substeps["0"].observation[""], other_after.substeps["0"].observation[""][:5])
    np.testing.assert_array_equal(after.reward, other_after.reward[:5])
    assert after.episodes
    assert after.episodes == other_after.episodes[: len(after.episodes)]
    stopped_worker.close()
    other.close()


def test_stamps_rollouts_with_actor_sequence_and_version():
    vector_env = numbered_vector()
    policy = RandomPolicy(environment_spaces(vector_env), seed=0)
    policy.load(9, {})
    worker = worker_of(vector_env, policy=policy, first_sequence=4)
    rollouts = [worker.collect(), worker.collect()]
    assert [(r.actor_id, r.incarnation, r.sequence, r.policy_version) for r in rollouts] == [
        ("a", 3, 4, 9),
        ("a", 3, 5, 9),
    ]
    assert (rollouts[0].n_steps, rollouts[0].n_envs) == (5, 4)
    assert rollouts[0].env_seeds == worker.env_seeds
    worker.close()


@pytest.mark.parametrize(
    ("observation", "mode"), list(zip([*OBSERVATION_SPACES, "mixed"], itertools.cycle([SAME, NEXT]), strict=False))
)
def test_records_all_observation_spaces(mode, observation):
    space = {**OBSERVATION_SPACES, **IMAGE_SPACES}[observation]
    check_columns(space, spaces.Discrete(2), mode)


@pytest.mark.parametrize(("action", "mode"), list(zip(ACTION_SPACES, itertools.cycle([SAME, NEXT]), strict=False)))
def test_records_all_action_spaces(mode, action):
    check_columns(OBSERVATION_SPACES["dict"], ACTION_SPACES[action], mode)


def check_columns(observation_space, action_space, mode):
    vector_env = vector_of(*[lambda: SampledEnv(observation_space, action_space)] * 3, mode=mode)
    policy = loaded(environment_spaces(vector_env), PolicySpec(hidden_sizes=(8,)))
    worker = worker_of(vector_env, 12, policy=policy)
    for _ in range(2):
        rollout = worker.collect()
        columns = rollout.substeps["0"]
        leaves = space_leaves(observation_space)
        n_final = len(rollout.final_index)
        for group, lead in (
            (columns.observation, (12, 3)),
            (columns.last_observation, (3,)),
            (columns.final_observation, (n_final,)),
        ):
            assert list(group) == list(leaves)
            for path, leaf in leaves.items():
                assert group[path].shape == (*lead, *leaf.shape)
                assert group[path].dtype == leaf.dtype
        assert columns.action.shape == (12, 3, *action_space.shape)
        assert columns.action.dtype == action_space.dtype
        assert (rollout.reward.dtype, rollout.reward.shape) == (np.float32, (12, 3))
        assert rollout.terminated.dtype == rollout.truncated.dtype == bool
        assert (columns.log_prob.dtype, columns.log_prob.shape) == (np.float32, (12, 3))
        for t in range(12):
            _, parameters = policy.act({path: column[t] for path, column in columns.observation.items()})
            np.testing.assert_allclose(
                columns.log_prob[t], policy.log_prob(parameters, columns.action[t]), rtol=1e-4, atol=1e-5
            )
    worker.close()


def test_clips_box_actions_for_the_environment_only():
    box = ACTION_SPACES["box"]  # SampledEnv refuses what is outside
    vector_env = vector_of(lambda: SampledEnv(spaces.Discrete(2), box))
    worker = worker_of(vector_env, 50, policy=loaded(environment_spaces(vector_env)))
    action = worker.collect().substeps["0"].action
    assert np.abs(action).max() > 0.5
    worker.close()


class Scribbler(NumberedEnv):
    """Returns one buffer again and again."""

    def __init__(self):
        super().__init__((3,))
        self.buffer = np.zeros(3)

    def observation(self):
        self.buffer[:] = super().observation()
        return self.buffer


def test_rollouts_share_no_memory_with_later_ones():
    worker = worker_of(vector_of(Scribbler, mode=NEXT), 4)
    first = worker.collect()
    arrays = [first.reward, first.terminated, first.truncated, first.substeps["0"].action, first.substeps["0"].log_prob]
    arrays += [*first.substeps["0"].observation.values(), *first.substeps["0"].last_observation.values()]
    before = [array.copy() for array in arrays]
    for array in arrays:  # whoever gets a rollout may do with it what they like
        array[...] = 0
    second = worker.collect()
    assert all(
        not np.shares_memory(array, other) for array in arrays for other in second.substeps["0"].observation.values()
    )
    np.testing.assert_array_equal(second.substeps["0"].observation[""][0], before[6])
    for array in arrays:
        assert not array.any()
    worker.close()


def test_same_seeds_give_the_same_rollouts():
    def collect(env_seed, agent_seed, vectorization):
        vector_env = make_vector_env(EnvironmentFactory("CartPole-v1", vectorization=vectorization), 3)
        policy = loaded(environment_spaces(vector_env), seed=agent_seed)
        worker = worker_of(vector_env, 30, policy=policy, env_seed=env_seed)
        columns = [worker.collect().substeps["0"] for _ in range(2)][1]
        worker.close()
        return columns.observation[""], columns.action

    for vectorization in ("sync", "entry_point"):
        one, two, other_env, other_agent = (
            collect(*seeds, vectorization) for seeds in ((1, 1), (1, 1), (2, 1), (1, 2))
        )
        np.testing.assert_array_equal(one[0], two[0])
        np.testing.assert_array_equal(one[1], two[1])
        assert (one[0] != other_env[0]).any()
        assert (one[1] != other_agent[1]).any()


def test_records_batched_final_observations():
    rollout = worker_of(BatchedVectorEnv("batched"), 4).collect()
    assert rollout.final_index.tolist() == [[2, 0], [3, 1]]
    assert rollout.substeps["0"].final_observation[""].tolist() == [3, 4]


def test_steps_gymnasiums_async_vector():
    vector_env = AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode=SAME, context="forkserver")
    worker = worker_of(vector_env, 60, env_seed=[1, 2])
    assert worker.collect().episodes
    worker.close()
