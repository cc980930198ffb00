"""ALE's own vector of Atari games: the frames, rewards and ends of games that are stepped one by one."""

import numpy as np
import pytest

from rollcast.actor.environments import atari
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.environments.recovering import RecoveringEnv
from rollcast.actor.environments.returned_values import InvalidValueError
from rollcast.actor.vector import atari as atari_vector
from rollcast.actor.vector.atari import AtariVector
from rollcast.actor.vector.make import make_vector_env
from rollcast.services.errors import ConfigurationError
from tests.unit.actor.workers.flat_workers import worker_of

pytestmark = pytest.mark.slow

BREAKOUT, FIRE = "ALE/Breakout-v5", 1


def games(kind: str = "auto", n_envs: int = 3, **env_kwargs):
    return make_vector_env(EnvironmentFactory(BREAKOUT, env_kwargs, kind, atari=True), n_envs)


@pytest.mark.parametrize("env_id", [BREAKOUT, "ALE/Pong-v5"])
def test_games_are_those_of_gymnasiums_wrappers_until_a_life_is_lost(env_id: str, monkeypatch: pytest.MonkeyPatch):
    for module in (atari, atari_vector):  # the two draw no-ops by different generators
        monkeypatch.setattr(module, "MAX_NO_OPS", 0)
    # Breakout has lives to lose, Pong has none: its episode is cut
    env_kwargs = {"repeat_action_probability": 0.0, "max_num_frames_per_episode": 1200 if env_id == BREAKOUT else 400}
    ours, theirs = (
        make_vector_env(EnvironmentFactory(env_id, env_kwargs, kind, atari=True), 3) for kind in ("auto", "sync")
    )
    assert isinstance(ours, AtariVector)
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    one, other = (vector.reset(seed=[1, 2, 3])[0] for vector in (ours, theirs))
    np.testing.assert_array_equal(one, other)
    rng, n_ended = np.random.default_rng(0), 0
    for _ in range(600):
        actions = rng.integers(ours.single_action_space.n, size=3)
        one, other = ours.step(actions), theirs.step(actions)
        for mine, its in zip(one[1:4], other[1:4], strict=True):
            np.testing.assert_array_equal(mine, its)
        ended = one[2] | one[3]
        np.testing.assert_array_equal(one[0][~ended], other[0][~ended])
        for b in np.flatnonzero(ended):
            np.testing.assert_array_equal(one[4]["final_obs"][b], other[4]["final_obs"][b])
            n_ended += 1
        if ended.any():
            break
    assert n_ended
    ours.close()
    theirs.close()


def test_a_lost_life_ends_an_episode_and_the_game_goes_on():
    vector = games(n_envs=2)
    vector.reset(seed=[1, 2])
    n_ended = np.zeros(2, int)
    for _ in range(400):
        frame, _, terminated, truncated, infos = vector.step(np.full(2, FIRE))
        for b in np.flatnonzero(terminated | truncated):
            n_ended[b] += 1
            same = np.array_equal(infos["final_obs"][b], frame[b])
            # five lives: the fifth ends the game, and the next one begins with other frames
            assert same == (n_ended[b] % 5 != 0)
    assert (n_ended >= 5).all()
    vector.close()


def test_the_same_seeds_play_the_same_games():
    def frames(seeds):
        vector = games()
        seen = [vector.reset(seed=seeds)[0].copy()]
        seen += [vector.step(np.full(3, FIRE))[0].copy() for _ in range(20)]
        vector.close()
        return np.stack(seen)

    first = frames([1, 2, 2])
    np.testing.assert_array_equal(first, frames([1, 2, 2]))
    np.testing.assert_array_equal(first[:, 1], first[:, 2])
    assert not np.array_equal(first[:, 0], first[:, 1])


def test_a_rollout_has_every_final_observation():
    vector = games(n_envs=2)
    worker = worker_of(vector, 200, env_seed=[5, 6])
    rollout = worker.collect()
    assert worker.env_seeds == (5, 6)
    assert len(rollout.final_index) == np.count_nonzero(rollout.terminated | rollout.truncated) > 0
    worker.close()


@pytest.mark.parametrize("arguments", [{"difficulty": 1}, {"mode": 0}])
def test_what_the_vector_lacks_is_played_one_by_one(arguments):
    vector = games(n_envs=1, **arguments)
    assert not isinstance(vector, AtariVector)
    vector.close()


def test_episodes_that_may_be_dropped_are_played_one_by_one():
    factory = EnvironmentFactory(BREAKOUT, atari=True, on_step_failure="drop_episode")
    assert isinstance(factory(), RecoveringEnv)
    assert not isinstance(make_vector_env(factory, 1), AtariVector)


def test_wrong_arguments_are_named():
    with pytest.raises(ConfigurationError, match="repeat_action_probability"):
        games(repeat_action_probability="often")


@pytest.mark.parametrize("wrong", [4, -1])
def test_an_action_that_no_game_has_is_refused_and_the_games_go_on(wrong: int):
    """ALE's own vector would wait for ever for a thread that has ended."""
    vector = games(n_envs=2)
    vector.reset(seed=[1, 2])
    with pytest.raises(InvalidValueError, match=rf"the action holds {wrong} at \(env\) = \(0\); expected 0 to 3"):
        vector.step(np.array([wrong, FIRE]))
    assert vector.step(np.full(2, FIRE))[0].shape == (2, 84, 84)
    vector.close()
