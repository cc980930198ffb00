"""The conformance suite of `DistributedActors`: every kind passes it, here or in tests/e2e."""

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rollcast.actor.statistics.events import EpisodeEvents, LogStatsLevel
from rollcast.learner.actors.base import DistributedActors
from rollcast.services.errors import ConfigurationError, StatisticsError
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.event_environments import StepEvents

MakeActors = Callable[..., DistributedActors]


def next_state(actors: DistributedActors, value: float) -> dict[str, np.ndarray]:
    """The policy's arrays, every number replaced by one that can be told apart."""
    return {name: np.full_like(array, value) for name, array in actors.policy.state_arrays().items()}


class DistributedActorsSuite:
    """A subclass has a fixture `make_actors`: a kind's actors on CountingEnv, not started; see `actor_kinds`."""

    def test_batches_have_time_first_and_hold_every_step(self, make_actors: MakeActors):
        with make_actors() as actors:
            batch, before, after, seconds = actors.collect_outputs("cpu")
            assert batch.reward.shape == (4, 4)
            columns = batch.substeps[FLAT_SUBSTEP]
            assert columns.observation[""].shape == (4, 4, 4)
            assert columns.action.shape == columns.log_prob.shape == (4, 4)
            assert columns.last_observation[""].shape == (4, 4)
            assert batch.n_env_steps == 16
            assert before >= 0
            assert after >= 0
            assert seconds > 0
            # an episode has five steps, step number n gives reward n: every row follows from the one above it
            steps = columns.observation[""][:, :, 1].numpy()
            np.testing.assert_array_equal(steps[1:], (steps[:-1] + 1) % 5)
            np.testing.assert_array_equal(batch.reward, steps + 1)

    def test_rollouts_continue_mid_episode_and_keep_true_final_observations(self, make_actors: MakeActors):
        with make_actors(n_actors=1, batch_size=2) as actors:
            actors.collect_outputs("cpu")
            batch, *_ = actors.collect_outputs("cpu")
            columns = batch.substeps[FLAT_SUBSTEP]
            # step 5 ends the episode in row 0; the next episode starts in row 1
            assert columns.observation[""][:, 0, 1].tolist() == [4, 0, 1, 2]
            assert batch.terminated[:, 0].tolist() == [True, False, False, False]
            assert batch.final_index.tolist() == [[0, 0], [0, 1]]
            assert columns.final_observation[""][:, 1].tolist() == [5, 5]
            assert [episode.episode_return for episode in batch.episodes] == [15.0, 15.0]

    def test_versions_are_taken_up_and_stamped_and_environments_know_the_progress_of_theirs(
        self, make_actors: MakeActors
    ):
        with make_actors(env_id="tests.environments:ProgressEnv") as actors:
            assert actors.policy_version == 1
            batch, *_ = actors.collect_outputs("cpu")
            assert batch.policy_version.tolist() == [1] * 4
            assert (batch.reward == 0.0).all()
            actors.progress = 0.25
            actors.broadcast_updated_policy(next_state(actors, 0.5))
            assert actors.policy_version == 2
            seen = set()
            for _ in range(50):
                batch, *_ = actors.collect_outputs("cpu")
                progress = np.where(np.asarray(batch.policy_version) == 2, 0.25, 0.0)
                np.testing.assert_array_equal(batch.reward, np.tile(progress, (4, 1)))
                seen |= set(batch.policy_version.tolist())
                if 2 in seen:
                    break
            assert 2 in seen, f"after 50 batches only versions {seen}"

    def test_stopped_actors_leave_nothing_behind_and_start_again(
        self, make_actors: MakeActors, monkeypatch: pytest.MonkeyPatch
    ):
        made: list[str] = []

        def mkdtemp(*arguments: str, **options: str) -> str:
            made.append(tempfile_mkdtemp(*arguments, **options))
            return made[-1]

        tempfile_mkdtemp = tempfile.mkdtemp
        monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
        descriptors = len(os.listdir("/proc/self/fd"))
        actors = make_actors()
        for _ in range(2):
            actors.start()
            actors.start()
            assert actors.collect_outputs("cpu")[0].n_env_steps == 16
            actors.stop()
            actors.stop()
            assert not [path for path in made if "rollcast-" in path and Path(path).exists()]
            assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("rollcast")]
        assert actors.n_actors_alive == 0
        # the forkserver keeps a few for itself, once
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 8

    def test_statistics_and_events_of_the_epoch(self, make_actors: MakeActors):
        with make_actors(env_id="tests.event_environments:wrapped") as actors:
            with pytest.raises(StatisticsError):
                actors.get_stats_value(EpisodeEvents.episode_return, LogStatsLevel.EPOCH, "mean")
            with pytest.raises(StatisticsError, match=r"event 'step_made' is unknown.*episode_return: 'mean'"):
                actors.get_stats_value(StepEvents.step_made, LogStatsLevel.EPOCH, "mean")
            for _ in range(4):
                actors.collect_outputs("cpu")
            assert actors.get_stats_value(EpisodeEvents.episode_return, LogStatsLevel.EPOCH, "mean") == 15.0
            with pytest.raises(StatisticsError):
                actors.get_stats_value(EpisodeEvents.episode_return, LogStatsLevel.STEP, "mean")
            assert actors.get_stats_value(StepEvents.step_made, LogStatsLevel.EPOCH, "mean") == {
                "reset": 100.0,
                "odd": 9.0,
                "even": 6.0,
            }
            assert actors.get_stats_value("doorbell", LogStatsLevel.EPOCH) == 2.0
            actors.get_epoch_stats_aggregator().reset_epoch()
            with pytest.raises(StatisticsError, match="no episode has ended in this epoch"):
                actors.get_stats_value("wrapped_step", LogStatsLevel.EPOCH)

    @pytest.mark.parametrize("numbers", [{"n_rollout_steps": 0}, {"batch_size": 0}, {"batch_size": -3}])
    def test_impossible_numbers_are_refused(self, make_actors: MakeActors, numbers: dict[str, int]):
        (name, value) = next(iter(numbers.items()))
        with pytest.raises(ConfigurationError, match=f"{name} is {value}; expected at least 1"):
            make_actors(**numbers)
