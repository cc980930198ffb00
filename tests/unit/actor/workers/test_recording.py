import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.actor.workers.recording import EpisodeTracker
from rollcast.services.rollouts.rollouts import EpisodeStatistics


def episodes_one_by_one(reward, terminated, truncated, has_reset_rows):
    """Returns the findings of a loop over all rows of all rollouts: `(t, episode)` for each episode."""
    n_steps, n_envs = reward.shape
    total, length, is_reset_row = np.zeros(n_envs), np.zeros(n_envs, int), np.zeros(n_envs, bool)
    found = []
    for t in range(n_steps):
        for b in range(n_envs):
            if not is_reset_row[b]:
                total[b] += reward[t, b]
                length[b] += 1
            is_reset_row[b] = False
            if terminated[t, b] or truncated[t, b]:
                found.append((t, EpisodeStatistics(b, total[b], int(length[b]))))
                total[b] = length[b] = 0
                is_reset_row[b] = has_reset_rows
    return found


@pytest.mark.slow
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(1, 4), st.booleans(), st.integers(0, 999))
@settings(max_examples=50)
def test_episodes_are_those_of_a_loop(lengths, n_envs, has_reset_rows, seed):
    """Over rollouts of any length, one after the other, with the values that came with the ends."""
    rng = np.random.default_rng(seed)
    reward = rng.integers(-9, 9, (sum(lengths), n_envs)).astype(np.float32)
    terminated, truncated = rng.random((2, *reward.shape)) < 0.2
    if has_reset_rows:
        # an episode cannot end in the row that resets it
        for t in range(1, len(reward)):
            ended = terminated[t - 1] | truncated[t - 1]
            terminated[t, ended] = truncated[t, ended] = False
    tracker, start, found = EpisodeTracker(n_envs, has_reset_rows=has_reset_rows), 0, []
    for length in lengths:
        rows = slice(start, start + length)
        flags = {"terminated": terminated[rows], "truncated": truncated[rows], "dropped": (), "cut": ()}
        columns = types.SimpleNamespace(reward=reward[rows], **flags)
        ends = np.argwhere(columns.terminated | columns.truncated).tolist()
        valid, episodes = tracker.finish(columns, length, {(t, b): (start + t,) for t, b in ends})
        found += [(episode.events[0], episode._replace(events=())) for episode in episodes]
        if valid is not None:
            assert has_reset_rows
            assert not valid.all()
        start += length
    assert found == episodes_one_by_one(reward, terminated, truncated, has_reset_rows)


@pytest.mark.parametrize("has_reset_rows", [True, False])
def test_nothing_played_is_nothing(has_reset_rows):
    columns = types.SimpleNamespace(reward=None, terminated=None, truncated=None)
    assert EpisodeTracker(3, has_reset_rows=has_reset_rows).finish(columns, 0, {}) == (None, ())
