"""Atari games: the frames of gymnasium's own wrappers, and lives that end episodes in training only."""

import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing

from rollcast.actor.environments.atari import LifeLossEnds, raw_frames_hint
from rollcast.actor.environments.make import EnvironmentFactory, make_single_env, whole_episodes
from rollcast.actor.environments.recovering import RecoveringEnv
from rollcast.actor.vector.make import make_vector_env, probe_spaces
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces

BREAKOUT = EnvironmentFactory("ALE/Breakout-v5", atari=True)
SHORT = {"max_num_frames_per_episode": 600}


@pytest.mark.slow
class TestFrames:
    @pytest.mark.parametrize("env_id", ["ALE/Breakout-v5", "PongNoFrameskip-v4"])
    def test_evaluation_plays_the_games_of_gymnasiums_wrappers(self, env_id: str):
        ours = make_single_env(whole_episodes(EnvironmentFactory(env_id, SHORT, atari=True)))
        theirs = AtariPreprocessing(gymnasium.make(env_id, frameskip=1, **SHORT))
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        rng = np.random.default_rng(0)
        for seed in (7, None):
            np.testing.assert_array_equal(ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0])
            ends = False
            while not ends:
                action = rng.integers(ours.action_space.n)
                one, other = ours.step(action), theirs.step(action)
                np.testing.assert_array_equal(one[0], other[0])
                assert one[1:4] == other[1:4]
                ends = one[2] or one[3]
        if env_id == "ALE/Breakout-v5":
            assert ours.unwrapped.ale.lives() < 5, "an evaluation goes on where training ends an episode"

    def test_actions_are_sticky_unless_the_arguments_say_otherwise(self):
        for env_kwargs, expected in (({}, 0.25), ({"repeat_action_probability": 0.0}, 0.0)):
            env = EnvironmentFactory("ale_py:ALE/Pong-v5", env_kwargs, atari=True)()
            assert env.unwrapped.ale.getFloat("repeat_action_probability") == expected
            env.close()

    def test_a_game_that_is_made_says_nothing(self, capfd: pytest.CaptureFixture[str]):
        BREAKOUT().close()
        assert capfd.readouterr() == ("", "")


class Lives(gymnasium.Env):
    """A game that loses lives when the script says so; a frame shows game, step and action."""

    observation_space = spaces.Box(0, 255, (3,), np.uint8)
    action_space = spaces.Discrete(4)

    def __init__(self, *scripts: str) -> None:
        # each letter is a step: "." nothing, "x" a life, "!" the game's end, "t" its truncation, "r" it raises
        self.scripts, self.game = scripts, -1
        self.ale = SimpleNamespace(lives=lambda: self.n_lives)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.game, self.n_steps, self.n_lives = self.game + 1, 0, 3
        return np.array([self.game, 0, 0], np.uint8), {"seed": seed}

    def step(self, action):
        event = self.scripts[self.game][self.n_steps]
        if event == "r":
            raise RuntimeError("broken")
        self.n_steps += 1
        self.n_lives -= event in "x!"
        return np.array([self.game, self.n_steps, action], np.uint8), 1.0, event == "!", event == "t", {}


@pytest.mark.slow
class TestLives:
    @pytest.mark.parametrize(
        ("scripts", "n_steps", "seed", "frame", "ends"),
        [
            pytest.param((".x...", "."), 2, None, [0, 3, 0], False, id="a lost life: the game goes on after a no-op"),
            pytest.param((".!", "."), 2, None, [1, 0, 0], False, id="the game's end: the next game"),
            pytest.param((".t", "."), 2, None, [1, 0, 0], False, id="the game's truncation: the next game"),
            pytest.param(("x.", ".."), 1, 5, [1, 0, 0], False, id="a seed: the next game"),
            pytest.param(("..", ".."), 1, None, [1, 0, 0], False, id="no end yet: the next game"),
            pytest.param(
                ("xx..", "."), 1, None, [0, 2, 0], False, id="the no-op loses a life: no further episode ends"
            ),
            pytest.param(
                ("x!", "x"), 1, None, [1, 0, 0], True, id="the no-op ends the game: the lives of the next count"
            ),
        ],
    )
    def test_a_reset_begins_the_next_episode_after(self, scripts, n_steps, seed, frame, ends):
        env = LifeLossEnds(Lives(*scripts))
        env.reset(seed=0)
        for event in scripts[0][:n_steps]:
            assert env.step(2)[2:4] == (event in "x!", event == "t")
        found, info = env.reset(seed=seed)
        np.testing.assert_array_equal(found, frame)
        assert frame[0] == 0 or info == {"seed": seed}
        assert env.step(1)[2] is ends

    def test_a_game_that_raised_begins_anew(self):
        env = RecoveringEnv(LifeLossEnds(Lives("xr", "..")))
        env.reset()
        env.step(1)
        with pytest.raises(RuntimeError, match="broken"):
            env.reset()  # in the no-op
        np.testing.assert_array_equal(env.reset()[0], [1, 0, 0])
        env = RecoveringEnv(LifeLossEnds(Lives("x.r", "..")))
        env.reset()
        env.step(1)
        env.reset()
        assert env.step(1)[3]  # the episode is dropped
        np.testing.assert_array_equal(env.reset()[0], [1, 0, 0])


class TestErrors:
    @pytest.mark.parametrize(
        ("env_id", "changes", "message"),
        [
            (
                "CartPole-v1",
                {},
                "'CartPole-v1' with atari, but that is not an Atari game; expected .*; choose one",
            ),
            ("ALE/Pon-v5", {}, "names no environment"),
            ("tests.environments:CountingEnv", {}, "is a factory with atari; expected .* preprocess in the factory"),
            ("ALE/Pong-v5", {"env_kwargs": {"frameskip": 2}}, "frameskip 2 with atari, but a step is 4 frames already"),
            ("ALE/Pong-v5", {"env_kwargs": {"obs_type": "ram"}}, "omit obs_type, or omit atari"),
            ("ALE/Pong-v5", {"env_kwargs": {"continuous": True}}, "continuous True with atari, but the no-ops"),
            ("ALE/Pong-v5", {"env_kwargs": {"gravity": 1}}, "cannot be made with env_kwargs"),
            ("ALE/Pong-v5", {"vectorization": "entry_point"}, "vectorization is 'entry_point' with atari"),
        ],
    )
    def test_refuses_what_cannot_be_preprocessed(self, env_id: str, changes: dict, message: str):
        with pytest.raises(ConfigurationError, match=message):
            make_vector_env(EnvironmentFactory(env_id, atari=True, **changes), 1)

    @pytest.mark.parametrize("module", ["ale_py", "cv2"])
    def test_names_the_extra_that_is_missing(self, module: str, monkeypatch: pytest.MonkeyPatch):
        found = sys.modules["importlib.util"].find_spec
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == module else found(name))
        with pytest.raises(ConfigurationError, match=rf"--atari needs {module}.* 'atari'; install it: .*\[atari"):
            BREAKOUT()


def test_raw_frames_are_hinted_at_and_others_are_not():
    def hint(shape: tuple[int, ...]) -> str:
        observation = spaces.Box(0, 255, shape, np.uint8)
        return raw_frames_hint({FLAT_SUBSTEP: SubstepSpaces(observation=observation, action=spaces.Discrete(2))})

    assert "with --atari they are 84 by 84" in hint((210, 160, 3))
    assert hint((210, 160))
    assert not hint((84, 84))
    assert not raw_frames_hint(probe_spaces(BREAKOUT))
