import functools
import logging

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.statistics.events import EpisodeEvents, LogStatsLevel
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.services.errors import ConfigurationError, InvalidSpaceError, RefusedError
from tests.unit.actor.sample_environments import (
    NestedNumberedEnv,
    NumberedEnv,
    SampledEnv,
)
from tests.vector_comparison import assert_same_play
from tests.vector_environments import DrawingEnv, MisbehavingEnv, OtherSpaceEnv, TellingEnv

MODES = list(AutoresetMode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", [NumberedEnv, NestedNumberedEnv, TellingEnv])
def test_says_what_gymnasiums_own_says(env, mode):
    factories = [functools.partial(env, lengths) for lengths in ((3, 1, 4), (2, 5), (1,))]
    ours = SequentialVectorEnv(factories, autoreset_mode=mode)
    theirs = SyncVectorEnv(factories, autoreset_mode=mode)
    assert assert_same_play(ours, theirs, 40) > 20
    ours.close(), theirs.close()


def test_nested_actions_arrive():
    action_space = spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "gear": spaces.Tuple([spaces.Discrete(3)])})
    received = []

    class ListeningEnv(NumberedEnv):
        def step(self, action):
            received.append(action)
            return super().step(0)

    ListeningEnv.action_space = action_space
    env = SequentialVectorEnv([ListeningEnv] * 2)
    env.reset(seed=0)
    ListeningEnv.action_space = spaces.Discrete(2)
    env.step({"arm": np.array([[1, 2], [3, 4]], np.float32), "gear": (np.array([0, 2]),)})
    assert [action["arm"].tolist() for action in received] == [[1, 2], [3, 4]]
    assert [action["gear"][0] for action in received] == [0, 2]
    env.close()


def test_observations_are_ones_own_unless_asked_otherwise():
    for is_own in (True, False):
        env = SequentialVectorEnv([DrawingEnv] * 2, copy=is_own)
        first, _ = env.reset(seed=0)
        kept = first.copy()
        env.step(np.ones((2, 2), np.float32))
        assert (first == kept).all() is np.bool_(is_own)
        env.close()


class TestSeeds:
    def names(self, env, n_steps):
        """`(environment, seed, episode)` of every episode begun."""
        observation, _ = env.reset()
        begun = [(i, *row[:2]) for i, row in enumerate(observation.tolist())]
        for _ in range(n_steps):
            observation, *_ = env.step(np.zeros(env.num_envs, int))
            begun += [(i, *row[:2]) for i, row in enumerate(observation.tolist()) if row[2] == 0]
        return begun

    @pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
    def test_are_consumed_episode_by_episode_and_start_over(self, mode):
        env = SequentialVectorEnv(
            [functools.partial(NumberedEnv, (1,)), functools.partial(NumberedEnv, (2,))], autoreset_mode=mode
        )
        env.seed([10, 20, 11, 21, 12])
        begun = self.names(env, 12)
        assert [seed for i, seed, _ in begun if i == 0][:5] == [10, 11, 12, 12, 12]
        assert [seed for i, seed, _ in begun if i == 1][:4] == [20, 21, 21, 21]
        assert [seed for i, seed, _ in self.names(env, 12)] == [seed for i, seed, _ in begun]
        env.close()

    def test_of_reset_go_before_the_pool(self):
        env = SequentialVectorEnv([NumberedEnv] * 2)
        env.seed([1, 2])
        assert env.reset(seed=[5, None])[0][:, 0].tolist() == [5, 0]
        assert env.reset()[0][:, 0].tolist() == [1, 2]
        env.close()

    @pytest.mark.parametrize("seeds", [[], [1], [1, -1]])
    def test_too_few(self, seeds):
        env = SequentialVectorEnv([NumberedEnv] * 2)
        with pytest.raises(ConfigurationError, match="expected at least 2, one for each environment"):
            env.seed(seeds)
        with pytest.raises(ConfigurationError, match="seed has 3 seeds; expected 2"):
            env.reset(seed=[1, 2, 3])
        env.close()


class TestFailures:
    @pytest.mark.parametrize(
        ("what", "at", "message"),
        [
            ("raise", 2, r"environment 1 \(seed 8\) raised ValueError in step\(\): the pole is broken"),
            ("raise", 0, r"environment 1 \(seed 8\) raised ValueError in reset\(\)"),
            ("raise", -1, r"environment 1 \(seed None\) raised ValueError in make\(\)"),
            ("exit", 2, r"environment 1 \(seed 8\) raised SystemExit in step\(\): sys.exit\(3\) was called"),
            (
                "dtype",
                2,
                r"returned a wrong value from step\(\): the observation is complex64\[3\]; expected float64\[3\]",
            ),
            ("shape", 2, r"returned a wrong value from step\(\): the observation is float64\[2\]"),
            ("list", 0, r"returned a wrong value from reset\(\): the observation is float64\[1, 3\]"),
            ("close", 2, r"raised RuntimeError in step\(\): the simulator is closed"),
        ],
    )
    def test_name_the_environment_and_its_seed(self, what, at, message):
        env = None
        with pytest.raises(EnvironmentFailedError, match=message) as caught:
            env = SequentialVectorEnv([MisbehavingEnv, functools.partial(MisbehavingEnv, what, at)])
            env.reset(seed=7)
            for _ in range(4):
                env.step(np.zeros(2, int))
        assert caught.value.env_index == 1
        assert "Traceback" in caught.value.exception_traceback
        if env is not None:
            with pytest.raises(RefusedError, match=r"has failed.*expected no call except close"):
                env.step(np.zeros(2, int))
            env.close(), env.close()

    def test_closing_goes_on(self, caplog):
        envs = [MisbehavingEnv("raise in close", 99), MisbehavingEnv()]
        env = SequentialVectorEnv([functools.partial(lambda one: one, one) for one in envs])
        env.close(), env.close()
        assert not envs[1].is_open
        assert "environment 0 raised RuntimeError in close(): cannot close" in caplog.text
        with pytest.raises(RefusedError, match="is closed"):
            env.reset()

    def test_spaces_that_differ_or_are_not_supported(self):
        with pytest.raises(
            InvalidSpaceError, match=r"environment 1 has observation_space Box.*expected the same as env"
        ):
            SequentialVectorEnv([MisbehavingEnv, OtherSpaceEnv])
        with pytest.raises(InvalidSpaceError, match="Text"):
            SequentialVectorEnv([functools.partial(SampledEnv, spaces.Text(3), spaces.Discrete(2))])
        with pytest.raises(ConfigurationError, match="env_factories is empty"):
            SequentialVectorEnv([])

    def test_actions_are_checked_before_anything_happens(self):
        env = SequentialVectorEnv([NumberedEnv] * 2)
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"the actions are int64\[3\]; expected int64\[2\]"):
            env.step(np.zeros(3, int))
        assert env.step(np.zeros(2, int))[0][:, 2].tolist() == [1, 1]
        env.close()

    def test_without_autoreset_an_ended_episode_is_not_stepped(self):
        env = SequentialVectorEnv([functools.partial(NumberedEnv, (1,)), NumberedEnv], autoreset_mode="Disabled")
        env.reset(seed=0)
        env.step(np.zeros(2, int))
        with pytest.raises(RefusedError, match=r"environments \[0\] have ended.*reset_mask"):
            env.step(np.zeros(2, int))
        env.close()


def test_attributes_and_methods():
    env = SequentialVectorEnv([TellingEnv] * 2)
    env.reset(seed=3)
    assert env.call("add", 2, factor=5) == (11, 11)
    env.set_attr("difficulty", [2, 3])
    assert env.get_attr("difficulty") == (2, 3)
    env.set_attr("difficulty", 4)
    assert env.call("add", 1) == (5, 5)
    assert env.np_random_seed == (3, 4)
    assert len(env.np_random) == 2
    assert [image.tolist() for image in env.render()] == [[[0, 0], [0, 0]]] * 2
    assert env.get_actor_rewards() is None
    for name in ("step", "reset", "close"):
        with pytest.raises(ConfigurationError, match=rf"use \.{name}\(\)"):
            env.call(name)
    with pytest.raises(ConfigurationError, match="values has 3 entries; expected 2"):
        env.set_attr("difficulty", [1, 2, 3])
    with pytest.raises(EnvironmentFailedError, match=r"environment 0 \(seed 3\) raised AttributeError in nothing"):
        env.call("nothing")
    env.close()


def test_statistics(caplog):
    env = SequentialVectorEnv([functools.partial(NumberedEnv, (2,))] * 4, "play", autoreset_mode="SameStep")
    env.reset(seed=0)
    for _ in range(4):
        env.step(np.zeros(4, int))
    mean = env.statistics.get_stats_value(EpisodeEvents.episode_return, LogStatsLevel.EPOCH, "mean")
    assert mean == 3.0
    with caplog.at_level(logging.INFO, "rollcast.actor.vector.base"):
        for _ in range(500):
            env.step(np.zeros(4, int))
    assert "play: {'episode_return" in caplog.text
    assert env.statistics.get_stats_value(EpisodeEvents.episode_length, LogStatsLevel.EPOCH, "mean") == 2.0
    env.close()
