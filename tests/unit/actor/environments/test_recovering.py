from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.actor.environments.failures import EnvironmentFailedError, FailureReport
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.environments.recovering import MAX_FAILURES_IN_A_ROW, DroppedEpisodesLog, RecoveringEnv
from rollcast.actor.vector.make import make_vector_env
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.services.errors import InvalidSpaceError
from tests.rollouts import transitions_of
from tests.unit.actor.workers.flat_workers import worker_of
from tests.wrong_environments import REWARDS


class Flaky(gymnasium.Env):
    """Observations are (episode, step); rewards the step's number. Raises instead of making some steps.

    Args:
        length: Steps in an episode.
        failing: Which steps raise, counted over all episodes, those that raise included.
    """

    def __init__(self, length: int, failing: frozenset[int]) -> None:
        self.observation_space = spaces.Box(-1, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length, self._failing = length, failing
        self.episode = self._n_made = -1
        self.transitions: list[tuple] = []
        self.episodes: list[tuple[float, int]] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self._step = 0
        self._return = 0.0
        return self._observe(), {}

    def step(self, action):
        self._n_made += 1
        if self._n_made in self._failing:
            if self.transitions and self.transitions[-1][1] == (self.episode, self._step):
                self.transitions[-1] = (*self.transitions[-1][:3], False, True)  # cut after it
            raise RuntimeError("the simulator has lost its licence")
        before = (self.episode, self._step)
        self._step += 1
        self._return += self._step
        ends = self._step == self._length
        self.transitions.append((before, (self.episode, self._step), float(self._step), ends, False))
        if ends:
            self.episodes.append((self._return, self._step))
        return self._observe(), float(self._step), ends, False, {}

    def _observe(self):
        return np.array([self.episode, self._step], np.float32)


def vector_of(*envs):
    recovering = [lambda env=env: RecoveringEnv(env) for env in envs]
    return SyncVectorEnv(recovering, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.frozensets(st.integers(0, 40), max_size=MAX_FAILURES_IN_A_ROW - 1)),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 6),
)
@settings(max_examples=50)
def test_rollout_has_only_completed_steps_as_transitions(plans, n_steps):
    envs = [Flaky(length, failing) for length, failing in plans]
    vector_env = vector_of(*envs)
    worker = worker_of(vector_env, n_steps)
    rollouts = [worker.collect() for _ in range(5)]
    for b, env in enumerate(envs):
        found = [transition for rollout in rollouts for transition in transitions_of(rollout, b)]
        # one that was cut in the rollout after its own cannot be marked in it any more
        border = {transition[1] for rollout in rollouts for transition in list(transitions_of(rollout, b))[-1:]}
        assert [transition[:3] for transition in found] == [transition[:3] for transition in env.transitions]
        for mine, made in zip(found, env.transitions, strict=True):
            assert mine == made or (mine[1] in border and mine[3:] == (False, False))
        episodes = [episode for rollout in rollouts for episode in rollout.episodes if episode.env_index == b]
        assert [(episode.episode_return, episode.n_steps) for episode in episodes] == env.episodes
    assert sum(rollout.n_env_steps for rollout in rollouts) == sum(len(env.transitions) for env in envs)


def test_logs_environment_seed_and_traceback(caplog):
    vector_env = vector_of(Flaky(5, frozenset()), Flaky(5, frozenset([2])))
    worker = worker_of(vector_env, 5, env_seed=(7, 8))
    worker.collect()
    (record,) = caplog.records
    assert "environment 1 (seed 8) raised RuntimeError in step(): the simulator has lost its licence" in record.message
    assert "in step" in record.message


def test_environment_that_always_raises_fails():
    worker_env = vector_of(Flaky(5, frozenset(range(100))))
    worker = worker_of(worker_env, 50)
    with pytest.raises(EnvironmentFailedError, match="licence"):
        worker.collect()
    assert worker_env.envs[0].unwrapped.episode == MAX_FAILURES_IN_A_ROW - 1


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
def test_setting_applies_to_environments_made_by_name(vectorization, caplog):
    factory = EnvironmentFactory(
        "tests.environments:FailingEnv", {"fail_at": 3}, vectorization, on_step_failure="drop_episode"
    )
    vector_env = make_vector_env(factory, 2)
    worker = worker_of(vector_env, 9)
    rollout = worker.collect()
    worker.close()
    assert rollout.valid.tolist() == [[True, True], [True, True], [False, False]] * 3
    assert worker.dropped_episodes == 6
    assert len(caplog.records) == 5


@pytest.mark.parametrize("what", [*REWARDS, "four", "ended", "token", "sight"])
def test_an_episode_is_dropped_at_a_wrong_value(what, caplog):
    factory = EnvironmentFactory("tests.wrong_environments:WrongEnv", {"what": what}, on_step_failure="drop_episode")
    with closing(worker_of(make_vector_env(factory, 2), 9)) as worker:
        rollout = worker.collect()
    assert rollout.valid.tolist() == [[True, True], [True, True], [False, False]] * 3
    assert worker.dropped_episodes == 6
    assert "raised InvalidValueError in step()" in caplog.records[0].message


def test_processes_drop_an_episode_at_a_wrong_value():
    factory = EnvironmentFactory(
        "tests.wrong_environments:WrongEnv", {"what": "sight"}, "subprocess", on_step_failure="drop_episode"
    )
    with closing(worker_of(make_vector_env(factory, 2), 9)) as worker:
        assert worker.collect().valid.tolist() == [[True, True], [True, True], [False, False]] * 3


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
def test_a_space_that_is_not_supported_is_refused_as_without_the_wrapper(vectorization):
    """Of gymnasium's spaces, Text is none."""
    told = []
    for on_step_failure in ("fail", "drop_episode"):
        factory = EnvironmentFactory(
            "tests.unit.actor.environments.test_recovering:Speaking", {}, vectorization, on_step_failure=on_step_failure
        )
        with pytest.raises(InvalidSpaceError) as caught:
            make_vector_env(factory, 1)
        told.append(str(caught.value))
    assert told[0] == told[1]


class Speaking(gymnasium.Env):
    """Observes text."""

    observation_space, action_space = spaces.Text(3), spaces.Discrete(2)


class OneBuffer(gymnasium.Env):
    """Observes in one buffer, whose number is wrong in every third step; it may ask for an action that is forbidden."""

    def __init__(self, space: spaces.Space, wrong: int) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self._is_masked, self._wrong = isinstance(space, spaces.Dict), wrong
        self._seen = np.ones(2, np.int8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._n_steps, self._seen[:] = 0, 1
        return self._observe(), {}

    def step(self, action):
        self._n_steps += 1
        self._seen[:] = self._wrong if self._n_steps == 3 else 1
        return self._observe(), 1.0, False, False, {}

    def _observe(self):
        return {"seen": np.zeros(1, np.float32), "action_mask": self._seen} if self._is_masked else self._seen


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (spaces.MultiDiscrete([2, 2], np.int8), 2),
        (spaces.Dict({"seen": spaces.Box(-1, 1, (1,)), "action_mask": spaces.MultiBinary(2)}), 0),
    ],
    ids=["buffer", "mask"],
)
def test_a_wrong_value_in_the_buffer_of_all_observations_ends_one_episode(space, wrong):
    env = RecoveringEnv(OneBuffer(space, wrong))
    vector_env = SequentialVectorEnv([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP)
    with closing(worker_of(vector_env, 6)) as worker:
        assert worker.collect().valid.tolist() == [[True], [True], [False]] * 2


def test_hours_of_dropped_episodes_are_a_line_a_minute(caplog):
    now = [0.0]
    log = DroppedEpisodesLog(clock=lambda: now[0])
    report = FailureReport.of(RuntimeError("no licence"), doing="step", env_index=0, env_seed=1)
    for _ in range(3600):
        log.note(report, env_index=0, env_seed=1)
        now[0] += 1.0
    assert 5 + 55 <= len(caplog.records) <= 5 + 60
    assert "others" not in caplog.records[0].message
    assert "the environment reset; 59 others since the last such line" in caplog.records[-1].message
