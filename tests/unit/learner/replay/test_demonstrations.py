import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.statistics.events import EpisodeEvents, LogStatsLevel
from rollcast.actor.vector.make import make_vector_env, probe_spaces
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.actors.with_buffer import BaseDistributedWorkersWithBuffer
from rollcast.learner.algorithms.observation_statistics import RolloutObserver
from rollcast.learner.experience.replayed import MAX_TRAJECTORIES, ReplayedExperience
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.demonstrations import load_demonstrations
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.replay.substeps import make_buffers
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_parts import load_initial_data
from rollcast.services.errors import (
    ConfigurationError,
    InvalidInputError,
    InvalidRolloutError,
    NotReadyError,
    RecordingError,
)
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.recording import RolloutWriter, read_rollouts
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.rollouts.rollouts import Rollout
from tests.buffers import make_buffer
from tests.integration.test_workers_with_buffer import make_workers
from tests.rollouts import make_rollout
from tests.two_substeps import SPACES as TWO_SUBSTEPS
from tests.two_substeps import TwoSubsteps

pytestmark = pytest.mark.slow

T, BATCH, MIN_SIZE = 4, 16, 40
RATIO, ERROR_BUFFER = 4.0, 400.0
LIMITED = {"samples_per_insert": RATIO, "error_buffer": ERROR_BUFFER}
COUNTING = EnvironmentFactory("tests.environments:CountingEnv", {})
SPACES = probe_spaces(COUNTING)


def played(n_rollouts: int, *, n_envs: int = 2, n_steps: int = T) -> Iterator[Rollout]:
    policy = RandomPolicy(SPACES, seed=0)
    policy.load(0, {})
    worker = RolloutWorker(
        make_vector_env(COUNTING, n_envs), policy, n_steps, actor_id="demo", incarnation=1, env_seed=0
    )
    for _ in range(n_rollouts):
        yield worker.collect()
    worker.close()


def record(path: Path, n_rollouts: int, *, n_envs: int = 2, n_steps: int = T) -> Path:
    header = RecordingHeader(spaces=SPACES, n_rollout_steps=n_steps, n_envs=n_envs)
    with RolloutWriter(path, header) as writer:
        for rollout in played(n_rollouts, n_envs=n_envs, n_steps=n_steps):
            writer.append(rollout)
    return path


def demo_buffer(**replay: object) -> ReplayBuffer:
    return make_buffer(
        SPACES,
        n_rollout_steps=T,
        batch_size=BATCH,
        n_envs=MAX_TRAJECTORIES,
        **{"capacity": 1000, "min_size": MIN_SIZE, **replay},
    )


def load(buffer: ReplayBuffer, path: Path) -> str:
    told: list[str] = []
    load_demonstrations(buffer, read_rollouts(path, SPACES), source="demo", announce=told.append)
    return told[0]


@pytest.mark.parametrize("n_steps", [T, 3])
def test_demonstrations_of_single_frames_are_stacked(n_steps: int, tmp_path: Path, caplog):
    buffer = demo_buffer(frame_stack=3)
    load(buffer, record(tmp_path / "file", 12, n_steps=n_steps))
    (columns,) = buffer.sample(BATCH).substeps.values()
    # the environment counts its steps from 0
    steps = columns.observation[""][0, ..., 1]
    np.testing.assert_array_equal(steps, np.maximum(steps[:, -1:] + np.arange(-2, 1), 0))
    assert not caplog.records


def test_demonstrations_that_begin_in_the_middle_are_told(tmp_path: Path, caplog):
    path = tmp_path / "file"
    with RolloutWriter(path, RecordingHeader(spaces=SPACES, n_rollout_steps=T, n_envs=2)) as writer:
        for rollout in list(played(12))[1:]:
            writer.append(rollout)
    load(demo_buffer(frame_stack=3), path)
    assert "has 1 rollouts without a previous rollout, and with fewer than the 2 earlier frames" in caplog.text


def test_every_demonstrated_step_enters_the_moments_once(tmp_path: Path):
    policy = TorchPolicy(SPACES, PolicySpec(hidden_sizes=(4,), normalize_observations=True))
    path = record(tmp_path / "demo", 7, n_steps=T + 1)
    rollouts = read_rollouts(path, SPACES)
    load_demonstrations(demo_buffer(), rollouts, source="demo", observe=RolloutObserver(policy))
    seen = [rollout.substeps["0"].observation[""].reshape(-1, 4) for rollout in read_rollouts(path, SPACES)]
    state = policy.state_arrays()
    assert state["normalization.0.count"] == 7 * 2 * (T + 1)
    np.testing.assert_allclose(state["normalization.0.mean"], np.concatenate(seen).mean(axis=0, dtype=np.float64))


class TestTheLimiterAfterwards:
    @pytest.mark.parametrize("n_rollouts", [5, 6, 100])
    def test_difference_begins_in_the_middle_of_its_range(self, tmp_path: Path, n_rollouts: int):
        buffer = demo_buffer(**LIMITED)
        load(buffer, record(tmp_path / "demo", n_rollouts))
        limiter = buffer.info().limiter
        assert limiter.size == n_rollouts * 8
        assert (limiter.inserts, limiter.samples) == (MIN_SIZE, 0)
        assert limiter.difference == RATIO * MIN_SIZE == (limiter.min_diff + limiter.max_diff) / 2

    def test_below_the_minimum_actors_insert_the_rest(self, tmp_path: Path):
        buffer = demo_buffer(**LIMITED)
        assert load(buffer, record(tmp_path / "demo", 3)).endswith("it can be sampled after 16 more")
        assert buffer.info().limiter.difference == RATIO * 24
        with pytest.raises(NotReadyError, match="waits for 16 entries: 24 of 40"):
            buffer.sample(BATCH)
        for rollout in played(2):
            buffer.insert(rollout)
        buffer.sample(BATCH)


class TestTheBufferAfterwards:
    def test_buffer_holds_the_recorded_transitions(self, tmp_path: Path):
        buffer = demo_buffer()
        told = load(buffer, record(tmp_path / "demo", 20))
        assert told == ("initial data: 160 entries of 20 rollouts, 32 episodes, from demo; it can be sampled at once")
        sample = buffer.sample(BATCH)
        columns = sample.substeps["0"]
        np.testing.assert_array_equal(columns.next_observation[""][:, 1], columns.observation[""][0, :, 1] + 1)

    def test_keeps_newest_entries_of_too_long_recording_and_warns(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ):
        buffer = demo_buffer(capacity=100)
        load(buffer, record(tmp_path / "demo", 100))
        assert 90 <= buffer.size <= 100
        assert f"demo has 800 entries; the replay buffer of 100 kept the newest {buffer.size}" in caplog.text
        assert caplog.records[0].levelno == logging.WARNING
        episodes = np.concatenate([buffer.sample(BATCH).substeps["0"].observation[""][0, :, 0] for _ in range(20)])
        assert episodes.min() > 60, "of 80 episodes"

    def test_loads_rollouts_wider_than_the_limiter_admits_or_the_buffer_is(self):
        buffer = demo_buffer(**LIMITED)
        load_demonstrations(buffer, played(2, n_envs=5 * MAX_TRAJECTORIES), source="demo")
        assert buffer.size == 2 * T * 5 * MAX_TRAJECTORIES
        buffer = demo_buffer(capacity=60)
        load_demonstrations(buffer, played(1, n_envs=40), source="demo")
        assert 40 <= buffer.size <= 60


class TestRolloutsOfAnotherLength:
    # 21 steps of 2 environments, in episodes of 5
    @pytest.mark.parametrize(("n_rollouts", "n_steps"), [(3, 7), (7, 3), (1, 21)])
    def test_no_transition_is_lost(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, n_rollouts: int, n_steps: int
    ):
        buffer = demo_buffer(min_size=20, sampler="fifo", max_times_sampled=1)
        told = load(buffer, record(tmp_path / "demo", n_rollouts, n_steps=n_steps))
        assert told.startswith(f"initial data: 42 entries of {n_rollouts} rollouts, 8 episodes, from demo")
        assert not caplog.records
        columns = buffer.sample(42).substeps["0"]
        before, after = columns.observation[""][0], columns.next_observation[""]
        np.testing.assert_array_equal(after[:, :2], before[:, :2] + [0, 1], "the same episode, a step later")
        played_steps = 2 * [(1 + step // 5, step % 5) for step in range(21)]
        assert sorted(map(tuple, before[:, :2].astype(int).tolist())) == sorted(played_steps)

    def test_whole_rollouts_drop_the_remainder_and_log_it(self, tmp_path: Path, caplog: pytest.LogCaptureFixture):
        buffer = demo_buffer(entry="rollouts", min_size=16, capacity=100)
        load(buffer, record(tmp_path / "demo", 3, n_steps=7))
        assert buffer.size == 2 * (21 // T)
        assert "not a multiple of 4 steps: 2 steps at their ends are dropped" in caplog.text


class TestWhatIsRefused:
    def test_damaged_file_leaves_buffer_empty(self, tmp_path: Path):
        path = record(tmp_path / "demo", 20)
        path.write_bytes(path.read_bytes()[:-1])
        buffer = demo_buffer(**LIMITED)
        with pytest.raises(RecordingError, match=r"rollout 20, at byte .*the 19 rollouts before it are complete"):
            load(buffer, path)
        info = buffer.info()
        assert (info.size, info.inserted, info.limiter.difference) == (0, 0, 0)

    def test_rejects_buffer_with_entries(self, tmp_path: Path):
        buffer = demo_buffer()
        load_demonstrations(buffer, played(1), source="demo")
        with pytest.raises(InvalidInputError, match="a replay buffer of 8 entries; expected an empty one"):
            load(buffer, record(tmp_path / "demo", 1))
        assert buffer.size == 8

    def test_rejects_empty_recording(self):
        with pytest.raises(ConfigurationError, match="demo has no rollouts"):
            load_demonstrations(demo_buffer(), [], source="demo")

    def test_rejects_missing_final_observation_and_names_source(self):
        rollout = make_rollout(n_steps=T)
        rollout.terminated[1, 0] = True
        with pytest.raises(InvalidRolloutError, match=r"^demo: rollout 1 of 'a': the episode of environment 0 ended"):
            load_demonstrations(demo_buffer(), [*played(1), rollout], source="demo")

    def test_rejects_algorithm_without_a_buffer(self, tmp_path: Path):
        settings = TrainSettings(initial_data=tmp_path / "demo")
        with pytest.raises(
            ConfigurationError, match=r"--algorithm ppo \(the default\), .* no replay buffer; expected sac, dqn or r2d2"
        ):
            load_initial_data(settings, TorchPolicy(SPACES, PolicySpec()), None, announce=lambda line: None)


class TestSeveralSubsteps:
    def record(self, path: Path, n_rollouts: int) -> list[Rollout]:
        policy = RandomPolicy(TWO_SUBSTEPS, seed=0)
        policy.load(0, {})
        world = TwoSubsteps(T, 2)
        rollouts = [world.play(policy) for _ in range(n_rollouts)]
        with RolloutWriter(path, RecordingHeader(spaces=TWO_SUBSTEPS, n_rollout_steps=T, n_envs=2)) as writer:
            for rollout in rollouts:
                writer.append(rollout)
        return rollouts

    def load(self, path: Path) -> tuple[dict[str, int], list[str]]:
        settings = TrainSettings(initial_data=path, algorithm="dqn", n_rollout_steps=T)
        buffers = make_buffers(ReplaySettings(capacity=1000), TWO_SUBSTEPS, n_rollout_steps=T, batch_size=4)
        said: list[str] = []
        load_initial_data(settings, TorchPolicy(TWO_SUBSTEPS, PolicySpec()), buffers, announce=said.append)
        return {key: buffer.size for key, buffer in buffers.items()}, said

    def test_each_rollout_enters_the_buffer_of_its_substep(self, tmp_path: Path):
        rollouts = self.record(tmp_path / "demo", 6)
        sizes, said = self.load(tmp_path / "demo")
        assert sizes == {
            key: sum(rollout.n_env_steps for rollout in rollouts if rollout.substep_key == key) for key in TWO_SUBSTEPS
        }
        assert [line.split("; ")[0].rsplit(", ", 1)[1] for line in said] == ["substep 'scout'", "substep 'base'"]

    def test_rejects_recording_without_a_substep(self, tmp_path: Path):
        self.record(tmp_path / "demo", 1)
        with pytest.raises(ConfigurationError, match="demo, substep 'base' has no rollouts"):
            self.load(tmp_path / "demo")


class TestReplayedExperience:
    def make_source(self, demonstrations: Path) -> ReplayedExperience:
        policy = TorchPolicy(SPACES, PolicySpec(hidden_sizes=(4,)))
        actors = SequentialDistributedActors(COUNTING, policy, T, 1, 1, envs_per_actor=2)
        buffer = demo_buffer(**LIMITED)
        load(buffer, demonstrations)
        return ReplayedExperience(actors, {"0": buffer}, policy=policy, batch_size=BATCH)

    @pytest.mark.parametrize(("n_rollouts", "n_random"), [(3, 16), (5, 0)])
    def test_random_actors_fill_only_the_missing_entries(self, tmp_path: Path, n_rollouts: int, n_random: int):
        source = self.make_source(record(tmp_path / "demo", n_rollouts))
        with source:
            assert source.actors.policy.state_arrays()["exploration.uniform"] == (n_random > 0)
            assert source.next("cpu").env_steps == n_random
            assert source.actors.policy.state_arrays()["exploration.uniform"] == 0


class TestWorkersWithBuffer:
    def workers(self, initial: object) -> BaseDistributedWorkersWithBuffer:
        return make_workers("sequential", n_workers=1, initial_sampling_policy=initial, replay_buffer_size=1000)

    @pytest.mark.parametrize(("n_rollouts", "size"), [(90, 720), (3, 40)])
    def test_file_fills_buffer_and_workers_fill_the_rest(self, tmp_path: Path, n_rollouts: int, size: int):
        path = record(tmp_path / "demo", n_rollouts)
        with self.workers(path) as workers:
            assert workers.buffer.size == size
            mean = workers.initial_statistics.get_stats_value(EpisodeEvents.episode_return, LogStatsLevel.EPOCH, "mean")
            assert mean == 15.0
            workers.collect_rollouts()
            workers.init_replay_buffer(None, 48, 1)
            assert workers.buffer.size == 48
            workers.init_replay_buffer(path, 48, 1)
            assert workers.buffer.size == max(size, 48)

    def test_callable_provides_rollouts(self):
        with self.workers(lambda: played(10)) as workers:
            assert workers.buffer.size == 80
