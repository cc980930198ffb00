import pytest

from rollcast.actor.settings import DIALLED_IN
from rollcast.learner.playing.saved_play import played_environment
from rollcast.learner.settings.playing import PlayingSettings
from rollcast.services.errors import ConfigurationError

TRAINED = {
    "env_id": "Acrobot-v1",
    "env_kwargs": {"render_mode": None},
    "agent_policies": "separate",
    "vectorization": "sync",
    "atari": True,
}


DEFAULTS = ("CartPole-v1", {}, "auto", "shared", False)


@pytest.mark.parametrize(
    ("trained", "given", "expected"),
    [
        pytest.param(TRAINED, {}, ("Acrobot-v1", {"render_mode": None}, "sync", "separate", True), id="as the run did"),
        pytest.param({}, {}, DEFAULTS, id="a run says nothing: the defaults"),
        pytest.param({}, {"env_id": "Acrobot-v1"}, ("Acrobot-v1", *DEFAULTS[1:]), id="no run"),
        pytest.param(
            TRAINED,
            {
                "env_id": "Acrobot-v1",
                "env_kwargs": {},
                "vectorization": "subprocess",
                "agent_policies": "shared",
                "atari": False,
            },
            ("Acrobot-v1", {}, "subprocess", "shared", False),
            id="what is given counts",
        ),
        pytest.param(
            TRAINED,
            {"env_id": "CartPole-v1"},
            ("CartPole-v1", {}, "auto", "separate", False),
            id="another environment has its own arguments and vectorization, and is no game",
        ),
        pytest.param(
            TRAINED,
            {"env_id": "CartPole-v1", "env_kwargs": {"render_mode": "human"}},
            ("CartPole-v1", {"render_mode": "human"}, "auto", "separate", False),
            id="another environment takes given arguments",
        ),
        pytest.param(
            TRAINED,
            {"env_id": "ale_py:ALE/Breakout-v5"},
            ("ale_py:ALE/Breakout-v5", {}, "auto", "separate", True),
            id="another game is preprocessed as the run's",
        ),
        pytest.param(
            TRAINED,
            {"env_id": "tests.environments:CountingEnv"},
            ("tests.environments:CountingEnv", {}, "auto", "separate", False),
            id="a factory is not preprocessed",
        ),
        pytest.param(
            TRAINED,
            {"env_id": "CartPole-v1", "atari": True},
            ("CartPole-v1", {}, "auto", "separate", True),
            id="preprocessing that is given counts anywhere",
        ),
        pytest.param(
            TRAINED,
            {"env_id": "Acrobot-v1"},
            ("Acrobot-v1", {"render_mode": None}, "sync", "separate", True),
            id="the run's environment, named",
        ),
    ],
)
def test_the_environment_that_is_played_is_that_of_the_run_unless_it_is_given(trained, given, expected):
    factory = played_environment(PlayingSettings(**given), trained)
    found = (factory.env_id, dict(factory.env_kwargs), factory.vectorization, factory.agent_policies, factory.atari)
    assert found == expected


def test_environments_that_dialled_in_are_not_made():
    with pytest.raises(ConfigurationError, match="give one with --env-id"):
        played_environment(PlayingSettings(), {"env_id": DIALLED_IN})
    assert played_environment(PlayingSettings(env_id="CartPole-v1"), {"env_id": DIALLED_IN}).env_id == "CartPole-v1"
