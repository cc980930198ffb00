import pytest

from rollcast.learner.playing.saved_play import played_environment
from rollcast.learner.settings.playing import PlayingSettings

TRAINED = {
    "env_id": "Acrobot-v1",
    "env_kwargs": {"render_mode": None},
    "agent_policies": "separate",
    "vectorization": "sync",
}


def played(trained=TRAINED, **settings):
    factory = played_environment(PlayingSettings(**settings), trained)
    return factory.env_id, dict(factory.env_kwargs), factory.vectorization, factory.agent_policies


def test_plays_in_the_environment_and_vectorization_of_the_run():
    assert played() == ("Acrobot-v1", {"render_mode": None}, "sync", "separate")


@pytest.mark.parametrize("missing", ["vectorization", "agent_policies"])
def test_settings_that_a_run_lacks_have_their_defaults(missing):
    trained = {name: value for name, value in TRAINED.items() if name != missing}
    _, _, vectorization, agent_policies = played(trained)
    assert (vectorization, agent_policies)[missing == "agent_policies"] in {"auto", "shared"}


def test_given_settings_override_those_of_the_run():
    said = {"env_id": "Acrobot-v1", "env_kwargs": {}, "vectorization": "subprocess", "agent_policies": "shared"}
    assert played(**said) == ("Acrobot-v1", {}, "subprocess", "shared")


def test_another_environment_gets_automatic_vectorization():
    assert played(env_id="CartPole-v1", env_kwargs={})[2] == "auto"


def test_plays_default_environment_without_a_run():
    assert played({}) == ("CartPole-v1", {}, "auto", "shared")


@pytest.mark.parametrize(
    ("trained", "given", "expected"),
    [({"atari": True}, {}, True), ({"atari": True}, {"atari": False}, False), ({}, {}, False)],
)
def test_plays_atari_as_the_run_did_unless_told_otherwise(trained, given, expected):
    assert played_environment(PlayingSettings(**given), TRAINED | trained).atari is expected
