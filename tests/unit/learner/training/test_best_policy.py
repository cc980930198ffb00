import numpy as np
import pytest

from rollcast.learner.experience.experience import Experience
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.training.run_keeper import BestPolicy
from rollcast.services.policies.policies import PolicySpec, SavedPolicy


def best_policy(n_return_episodes: int = 100) -> tuple[BestPolicy, TrainingProgress]:
    """Returns one whose policies have the number of episodes for a version."""
    progress = TrainingProgress(n_return_episodes=n_return_episodes)

    def snapshot() -> SavedPolicy:
        return SavedPolicy(
            spec=PolicySpec(),
            state={},
            policy_version=progress.episodes,
            env_steps=progress.env_steps,
            mean_return=None,
        )

    return BestPolicy(progress, snapshot), progress


def play(best: BestPolicy, progress: TrainingProgress, returns: list[float]) -> None:
    """An update for each episode."""
    for value in returns:
        lag = np.zeros(1, np.int64)
        progress.record(
            Experience(batch=None, env_steps=1, n_episodes=1, returns=(value,), policy_lag=lag, waited_s=0.0)
        )
        best.observe()


@pytest.mark.parametrize("n_worse", [300, 10, 0], ids=["long before the end", "just before the end", "at the end"])
def test_the_best_policy_is_the_one_of_the_middle_of_its_episodes(n_worse: int):
    best, progress = best_policy()
    play(best, progress, [0.0] * 200 + [1.0] * 110 + [0.0] * n_worse)
    assert best.unwritten is not None
    assert best.unwritten.mean_return == 1.0
    assert best.unwritten.policy_version == pytest.approx(250, abs=25)


def test_a_record_is_kept_until_it_is_written():
    best, progress = best_policy(n_return_episodes=4)
    play(best, progress, [1.0] * 30)
    assert best.unwritten is not None
    assert best.written_return == float("-inf")
    best.note_written()
    assert (best.unwritten, best.written_return) == (None, 1.0)
    play(best, progress, [0.5] * 60)
    assert best.unwritten is None, "no record"


def test_a_resumed_run_keeps_the_best_policy_of_the_process_before():
    best, progress = best_policy(n_return_episodes=4)
    best.resume(2.0)
    play(best, progress, [1.0] * 60)
    assert best.unwritten is None
    assert best.written_return == 2.0
    play(best, progress, [3.0] * 60)
    assert best.unwritten is not None
