import itertools
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.services.errors import ConfigurationError, InvalidTensorError, NotReadyError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.rollouts import EpisodeStatistics
from rollcast.services.spaces.spaces import space_leaves
from tests.unit.actor.policies.test_make import loaded
from tests.unit.actor.sample_environments import (
    ACTION_SPACES,
    IMAGE_SPACES,
    OBSERVATION_SPACES,
    FailingEnv,
    NestedNumberedEnv,
    NumberedEnv,
    SampledEnv,
)

LENGTHS = ((3, 1, 4, 2), (1, 1), (5,), (2, 7))
SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


def vector_of(*factories, mode=SAME, copy=False):
    return SyncVectorEnv(list(factories), copy=copy, autoreset_mode=mode)


def numbered_vector(kind=NumberedEnv, mode=SAME):
    return vector_of(*(lambda lengths=lengths: kind(lengths) for lengths in LENGTHS), mode=mode)


def worker_of(vector_env, n_rollout_steps=5, *, policy=None, env_seed=0, **arguments):
    policy = policy or RandomPolicy(environment_spaces(vector_env), seed=0)
    return RolloutWorker(
        vector_env, policy, n_rollout_steps, actor_id="a", incarnation=3, env_seed=env_seed, **arguments
    )


def played(seed, lengths, n):
    """What a NumberedEnv goes through: n tuples (observation, next observation, reward, terminated, truncated)."""
    steps = (
        ((seed, k, s), (seed, k, s + 1), s + 1.0, s + 1 == length and k % 2 == 0, s + 1 == length and k % 2 == 1)
        for k, length in enumerate(itertools.cycle(lengths))
        for s in range(length)
    )
    return list(itertools.islice(steps, n))


def transitions(rollout, read):
    """All transitions of a rollout, `[B]` lists, put together as a learner would."""
    columns = rollout.substeps["0"]
    n_steps, n_envs = rollout.reward.shape
    final = {tuple(index): n for n, index in enumerate(rollout.final_index.tolist())}
    trajectories = [[] for _ in range(n_envs)]
    for t, b in np.ndindex(n_steps, n_envs):
        if rollout.valid is not None and not rollout.valid[t, b]:
            continue
        if (t, b) in final:
            after = read(columns.final_observation, final[t, b])
        elif t + 1 < n_steps:
            after = read(columns.observation, (t + 1, b))
        else:
            after = read(columns.last_observation, b)
        ends = bool(rollout.terminated[t, b]), bool(rollout.truncated[t, b])
        step = (read(columns.observation, (t, b)), after, float(rollout.reward[t, b]), *ends)
        trajectories[b].append(step)
    return trajectories


def read_flat(observation, index):
    return tuple(observation[""][index].tolist())


def read_nested(observation, index):
    when = observation["when/0"][index], observation["when/1"][index].item()
    return tuple(float(part) for part in (observation["name"][index], *when))


@pytest.mark.parametrize("mode", [SAME, NEXT])
@pytest.mark.parametrize(("kind", "read"), [(NumberedEnv, read_flat), (NestedNumberedEnv, read_nested)])
@pytest.mark.parametrize("n_rollout_steps", [1, 2, 5, 16])
def test_every_transition_is_the_true_one_across_rollouts(mode, kind, read, n_rollout_steps):
    worker = worker_of(numbered_vector(kind, mode), n_rollout_steps, env_seed=[7, 5, 3, 1])
    rollouts = [worker.collect() for _ in range(64 // n_rollout_steps)]
    seen = [transitions(rollout, read) for rollout in rollouts]
    for b, (seed, lengths) in enumerate(zip((7, 5, 3, 1), LENGTHS, strict=True)):
        trajectory = [step for trajectories in seen for step in trajectories[b]]
        assert trajectory == played(seed, lengths, len(trajectory))
        assert len(trajectory) == n_rollout_steps * len(rollouts) if mode is SAME else len(trajectory) >= 30
    assert sum(rollout.n_env_steps for rollout in rollouts) == sum(
        len(t) for trajectories in seen for t in trajectories
    )
    worker.close()


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_episodes_are_those_played(mode):
    worker = worker_of(numbered_vector(mode=mode), 6)
    episodes = [episode for _ in range(20) for episode in worker.collect().episodes]
    for b, lengths in enumerate(LENGTHS):
        own = [episode for episode in episodes if episode.env_index == b]
        assert len(own) > 15
        assert own == [
            EpisodeStatistics(env_index=b, episode_return=float(sum(range(1, n + 1))), n_steps=n)
            for n in itertools.islice(itertools.cycle(lengths), len(own))
        ]
    worker.close()


def test_same_step_marks_only_the_ends():
    worker = worker_of(numbered_vector(), 9)
    rollout = worker.collect()
    assert rollout.valid is None
    ends = np.argwhere(rollout.terminated | rollout.truncated)
    np.testing.assert_array_equal(rollout.final_index, ends)
    assert rollout.final_index.dtype == np.int32
    assert rollout.n_env_steps == 9 * 4
    worker.close()


def test_next_step_masks_the_row_after_an_end_also_across_rollouts():
    worker = worker_of(vector_of(lambda: NumberedEnv((2,)), mode=NEXT), 2)
    masks = [worker.collect().valid for _ in range(6)]  # two steps, a reset row, two steps, a reset row, ...
    expected = [[True, True], [False, True], [True, False]] * 2
    assert [[True, True] if mask is None else mask[:, 0].tolist() for mask in masks] == expected
    worker.close()


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_stopping_in_the_middle_leaves_no_gap(mode):
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


def test_stamps():
    worker = worker_of(numbered_vector(), first_sequence=4)
    worker._policy.load(9, {})
    rollouts = [worker.collect(), worker.collect()]
    assert [(r.actor_id, r.incarnation, r.sequence, r.policy_version) for r in rollouts] == [
        ("a", 3, 4, 9),
        ("a", 3, 5, 9),
    ]
    assert (rollouts[0].n_steps, rollouts[0].n_envs) == (5, 4)
    assert rollouts[0].env_seeds == worker.env_seeds
    worker.close()


@pytest.mark.parametrize("mode", [SAME, NEXT])
@pytest.mark.parametrize("observation", [*OBSERVATION_SPACES, "mixed"])
def test_all_observation_spaces(mode, observation):
    space = {**OBSERVATION_SPACES, **IMAGE_SPACES}[observation]
    check_columns(space, spaces.Discrete(2), mode)


@pytest.mark.parametrize("mode", [SAME, NEXT])
@pytest.mark.parametrize("action", ACTION_SPACES)
def test_all_action_spaces(mode, action):
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


def test_box_actions_are_clipped_only_for_the_environment():
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


def test_rollouts_share_no_memory_with_what_comes_later():
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


def test_seeds_make_the_same_rollouts():
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


def test_seeds_derive_for_each_environment():
    one, two, other = (worker_of(numbered_vector(), env_seed=seed) for seed in (2**63, 2**63, 1))
    assert one.env_seeds == two.env_seeds
    assert len(set(one.env_seeds)) == 4
    assert not set(one.env_seeds) & set(other.env_seeds)
    rollout = one.collect()
    np.testing.assert_array_equal(rollout.substeps["0"].observation[""][0, :, 0], one.env_seeds)
    vector_env = make_vector_env(EnvironmentFactory("CartPole-v1"), 3)
    assert len(set(worker_of(vector_env).env_seeds)) == 1  # one generator for all of them
    assert worker_of(vector_env, env_seed=[1, 2, 3]).env_seeds != worker_of(vector_env, env_seed=[1, 2, 4]).env_seeds
    vector_env.close()


@pytest.mark.parametrize(
    ("env_seed", "message"),
    [
        ([1, 2], "env_seed has 2 seeds; expected 4"),
        (-1, "env_seed is -1"),
        ([1, 2, 3, -4], "expected seeds of at least 0"),
    ],
)
def test_wrong_seeds(env_seed, message):
    with pytest.raises(ConfigurationError, match=message):
        worker_of(numbered_vector(), env_seed=env_seed)


def test_no_steps():
    with pytest.raises(ConfigurationError, match="n_rollout_steps is 0"):
        worker_of(numbered_vector(), 0)


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, None, "SameStep"])
def test_vectors_that_do_not_reset_by_themselves(mode):
    vector_env = numbered_vector()
    vector_env.metadata = {"autoreset_mode": mode}
    with pytest.raises(ConfigurationError, match=rf"autoreset_mode'\] {mode}; expected .*NEXT_STEP or .*SAME_STEP"):
        worker_of(vector_env)


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_an_exception_in_step_names_environment_and_seed(mode):
    vector_env = vector_of(NumberedEnv, lambda: FailingEnv(3), NumberedEnv, mode=mode)
    worker = worker_of(vector_env, 5, env_seed=[11, 22, 33])
    with pytest.raises(
        EnvironmentFailedError, match=r"environment 1 \(seed 22\) raised ValueError in step\(\)"
    ) as caught:
        worker.collect()
    failure = caught.value
    assert (failure.exception_type, failure.exception_message) == ("ValueError", "the pole is broken")
    assert (failure.env_index, failure.env_seed) == (1, 22)
    assert "in step\n    raise ValueError" in failure.exception_traceback
    assert isinstance(failure.__cause__, ValueError)
    worker.close()
    worker.close()


def test_an_exception_in_reset():
    worker = worker_of(vector_of(NumberedEnv, lambda: FailingEnv(fail_in_reset=True)), env_seed=[11, 22])
    with pytest.raises(
        EnvironmentFailedError, match=r"environment 1 \(seed 22\) raised OSError in reset\(\): no display"
    ):
        worker.collect()
    worker.close()


class BatchedVectorEnv(VectorEnv):
    """Like an entry point: SAME_STEP with its final observations in one batch, or forgotten, or a step that raises."""

    metadata = {"autoreset_mode": SAME}  # noqa: RUF012
    single_observation_space = spaces.Discrete(1000)
    single_action_space = spaces.Discrete(2)
    num_envs = 2

    def __init__(self, behaviour):
        self.behaviour = behaviour
        self.state = np.zeros(2, np.int64)

    def reset(self, *, seed=None, options=None):
        assert isinstance(seed, int)
        return self.state.copy(), {}

    def step(self, actions):
        if self.behaviour == "raises":
            raise RuntimeError("broken")
        self.state += 1
        final = self.state.copy()
        terminated = self.state % [3, 4] == 0
        self.state[terminated] += 100
        infos = {"final_obs": final} if self.behaviour == "batched" and terminated.any() else {}
        return self.state.copy(), np.ones(2, np.float32), terminated, np.zeros(2, bool), infos


def test_final_observations_in_a_batch():
    rollout = worker_of(BatchedVectorEnv("batched"), 4).collect()
    assert rollout.final_index.tolist() == [[2, 0], [3, 1]]
    assert rollout.substeps["0"].final_observation[""].tolist() == [3, 4]


def test_final_observations_that_are_missing():
    with pytest.raises(ConfigurationError, match="2 episodes ended but only 0 have a final observation"):
        worker_of(BatchedVectorEnv("forgets"), 4).collect()


def test_a_vector_that_does_not_tell_which_environment_failed():
    with pytest.raises(EnvironmentFailedError, match="one of the environments") as caught:
        worker_of(BatchedVectorEnv("raises"), 4).collect()
    assert caught.value.env_index is None


def test_gymnasiums_processes_work_too():
    vector_env = AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode=SAME, context="forkserver")
    worker = worker_of(vector_env, 60, env_seed=[1, 2])
    assert worker.collect().episodes
    worker.close()


def test_a_policy_without_weights():
    class Unready(RandomPolicy):
        act = Policy.act

    vector_env = numbered_vector()
    worker = worker_of(vector_env, policy=Unready(environment_spaces(vector_env), seed=0))
    with pytest.raises(NotReadyError):
        worker.collect()
    worker.close()


class Wandering(NumberedEnv):
    """Sees a number outside of its space in the third step."""

    observation_space = spaces.Discrete(5)

    def observation(self):
        return 7 if self.n_steps == 3 else 2


def test_an_observation_outside_its_space_is_the_cause_of_the_error_that_it_makes():
    """gymnasium's own vector takes it; the policy's IndexError would name neither environment nor seed."""
    vector_env = vector_of(lambda: Wandering((9,)), lambda: NumberedEnvOfFive((9,)))
    worker = worker_of(vector_env, 8, policy=loaded(environment_spaces(vector_env)), env_seed=[11, 22])
    with pytest.raises(
        InvalidTensorError,
        match=r"actor 'a', rollout 1: column 0/observation holds 7 at \(t, b\) = \(3, 0\), of environment 0 "
        r"\(seed 11\); expected 0 to 4; find where",
    ):
        worker.collect()


class NumberedEnvOfFive(Wandering):
    """Sees what its space says."""

    def observation(self):
        return 2


@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_a_reward_that_is_not_finite_is_refused_with_environment_and_seed(mode):
    class Rich(NumberedEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, np.inf, *rest

    worker = worker_of(vector_of(NumberedEnv, Rich, mode=mode), 4, env_seed=[11, 22])
    with pytest.raises(
        InvalidTensorError, match=r"column reward holds inf at \(t, b\) = \(0, 1\), of environment 1 .seed 22"
    ):
        worker.collect()


def test_sys_exit_in_an_environment_is_a_failure():
    class Leaving(NumberedEnv):
        def step(self, action):
            sys.exit()

    worker = worker_of(vector_of(NumberedEnv, Leaving), 4, env_seed=[11, 22])
    with pytest.raises(
        EnvironmentFailedError, match=r"environment 1 \(seed 22\) raised SystemExit in step\(\): sys.exit"
    ):
        worker.collect()
