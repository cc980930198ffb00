import json
import math
from typing import NoReturn

import numpy as np
import pytest

from rollcast.learner.experience.experience import Experience, ExperienceSource
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.services.errors import ConfigurationError


def experience(lags: list[int], returns: list[float], waited_s: float = 0.0) -> Experience:
    return Experience(
        batch=None,
        env_steps=10,
        n_episodes=len(returns),
        returns=tuple(returns),
        policy_lag=np.array(lags, np.int64),
        waited_s=waited_s,
    )


def test_the_recent_return_needs_all_its_episodes():
    progress = TrainingProgress(n_return_episodes=3)
    assert progress.snapshot().mean_return is None
    progress.record(experience([0], [1.0, 2.0]))
    assert progress.recent_mean_return() is None
    assert progress.snapshot().mean_return == 1.5
    progress.record(experience([0], [6.0, 7.0]))
    assert progress.recent_mean_return() == 5.0, "only the last three count"
    assert progress.snapshot().episodes == 4


def test_waiting_is_a_share_of_the_time():
    progress = TrainingProgress()
    progress.record(experience([0], [], waited_s=1e6))
    assert progress.snapshot().waiting_fraction > 1
    assert progress.snapshot().env_steps_per_second > 0
    assert progress.snapshot().seconds == pytest.approx(0, abs=60)


def test_counting_goes_on_from_a_checkpoint():
    progress = TrainingProgress(n_return_episodes=3)
    progress.record(experience([1, 3], [1.0, 2.0, 3.0, 4.0], waited_s=0.5))
    state = json.loads(json.dumps(progress.state()))
    resumed = TrainingProgress(n_return_episodes=3)
    resumed.load_state(state)
    assert resumed.recent_mean_return() == 3.0
    resumed.record(experience([5], [8.0]))
    now = resumed.snapshot()
    assert (now.env_steps, now.updates, now.episodes) == (20, 2, 5)
    assert (now.policy_lag_mean, now.policy_lag_max) == (3.0, 5)
    assert now.seconds >= state["seconds"]


def test_a_record_has_the_lag_and_the_waits_since_the_record_before():
    progress = TrainingProgress()
    progress.record(experience([4, 40], [], waited_s=1e6))
    first = progress.end_record()
    assert (first.policy_lag_mean, first.policy_lag_max, first.waiting_fraction) == (22.0, 40, 1.0)
    assert progress.recent_lag() == (22.0, 40), "none came since: those of the record"
    progress.record(experience([1, 2], []))
    assert progress.recent_lag() == (1.5, 2)
    second = progress.end_record()
    assert (second.policy_lag_mean, second.policy_lag_max, second.waiting_fraction) == (1.5, 2, 0.0)
    assert first.trajectories_by_lag == (0, 0, 0, 0, 1, *[0] * 27, 1), "the last counts all larger ones"
    assert second.trajectories_by_lag == (0, 1, 1, *[0] * 30)
    of_none = progress.end_record()
    assert math.isnan(of_none.policy_lag_mean), "0 would be the lag of trajectories"
    now = progress.snapshot()
    assert (now.policy_lag_mean, now.policy_lag_max) == (11.75, 40), "the summary is of the run"
    assert now.waiting_fraction > 1


def test_records_of_a_resumed_run_are_since_it_was_resumed():
    progress, resumed = TrainingProgress(), TrainingProgress()
    progress.record(experience([9], [], waited_s=1e6))
    resumed.load_state(progress.state())
    assert resumed.recent_lag() == (0.0, 0)
    resumed.record(experience([1], []))
    found = resumed.end_record()
    assert (found.policy_lag_mean, found.policy_lag_max, found.waiting_fraction) == (1.0, 1, 0.0)


class OnesOwn(ExperienceSource):
    """A source of a user, which knows nothing of ranks."""

    def next(self, learner_device: str, *, progress: float = 0.0) -> NoReturn:
        raise NotImplementedError


def test_a_source_of_ones_own_needs_no_empty_batch_but_with_several_ranks():
    source = OnesOwn(None)
    with pytest.raises(ConfigurationError, match=r"OnesOwn with several ranks.*overrides empty_batch"):
        source.empty_batch("cpu")
