import numpy as np
import pytest

from learner.batch import Batch
from learner.progress import TrainingProgress
from services.rollouts import EpisodeStatistics


def batch(versions: list[int], returns: list[float]) -> Batch:
    empty = np.zeros(0)
    return Batch(
        substeps={},
        reward=empty,
        terminated=empty,
        truncated=empty,
        valid=empty,
        final_index=empty,
        policy_version=np.array(versions),
        n_env_steps=10,
        episodes=tuple(EpisodeStatistics(env_index=0, episode_return=value, n_steps=1) for value in returns),
    )


def test_lag_is_the_learning_version_less_the_acting_one():
    progress = TrainingProgress()
    progress.record(batch([5, 3], []), policy_version=5, dequeue_s=0.0)
    progress.record(batch([6, 6], []), policy_version=6, dequeue_s=0.0)
    now = progress.snapshot()
    assert (now.policy_lag_mean, now.policy_lag_max) == (0.5, 2)
    assert (now.env_steps, now.updates) == (20, 2)


def test_the_recent_return_needs_all_its_episodes():
    progress = TrainingProgress(n_return_episodes=3)
    assert progress.snapshot().mean_return is None
    progress.record(batch([1], [1.0, 2.0]), policy_version=1, dequeue_s=0.0)
    assert progress.recent_mean_return() is None
    assert progress.snapshot().mean_return == 1.5
    progress.record(batch([1], [6.0, 7.0]), policy_version=1, dequeue_s=0.0)
    assert progress.recent_mean_return() == 5.0, "only the last three count"
    assert progress.snapshot().episodes == 4


def test_waiting_is_a_share_of_the_time():
    progress = TrainingProgress()
    progress.record(batch([1], []), policy_version=1, dequeue_s=1e6)
    assert progress.snapshot().waiting_fraction > 1
    assert progress.snapshot().env_steps_per_second > 0
    assert progress.snapshot().seconds == pytest.approx(0, abs=60)
