"""Episodes of a buffer's initial policy, against an account that is kept action by action."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.learner.actors.initial_episodes import InitialEpisodes
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.rollouts.rollouts import EpisodeStatistics
from tests.rollouts import make_rollout

T, B = 4, 3
INITIAL = 2


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize("has_reset_rows", [False, True])
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_episode_is_initial_if_any_of_its_actions_is(has_reset_rows: bool, cuts: bool, seed: int):
    rng, initial = np.random.default_rng(seed), InitialEpisodes()
    initial.begin(INITIAL)
    played_by: list[list[int]] = [[] for _ in range(B)]  # the versions of a running episode's actions
    must_reset = [False] * B
    for sequence, version in enumerate([1, 1, INITIAL, INITIAL, INITIAL, 3, 3, 3], start=1):
        if sequence == 5:
            initial.end(3)  # and one rollout of the initial policy is yet to come
        rollout = make_rollout(sequence=sequence, n_steps=T, n_envs=B, policy_version=version)
        valid, episodes, expected = np.ones((T, B), np.bool_), [], []
        for t, b in np.ndindex(T, B):
            if must_reset[b]:
                valid[t, b] = must_reset[b] = False
                continue
            played_by[b].append(version)
            if rng.random() < 0.3:
                (rollout.terminated if rng.random() < 0.5 else rollout.truncated)[t, b] = True
                episode = EpisodeStatistics(env_index=b, episode_return=rng.random(), n_steps=len(played_by[b]))
                if not (cuts and rng.random() < 0.2):  # else its environment failed, and it does not count
                    episodes.append(episode)
                    expected += [episode] if INITIAL in played_by[b] else []
                played_by[b], must_reset[b] = [], has_reset_rows
        rollout = dataclasses.replace(rollout, episodes=tuple(episodes), valid=None if valid.all() else valid)
        cut = int(rng.integers(1, B))
        found, others = [], []
        for piece in (RolloutSlice(rollout, 0, cut), RolloutSlice(rollout, cut, B)):
            split = initial.split(piece)
            found += split[0]
            others += split[1]
        assert set(expected) <= set(found) if cuts else sorted(found) == sorted(expected)
        assert sorted(found + others) == sorted(episodes)
        assert initial.is_initial(rollout) == (version == INITIAL)
