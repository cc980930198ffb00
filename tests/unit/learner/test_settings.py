import pytest

from actor.settings import ActorSettings
from learner.settings import LearnerSettings, TrainSettings
from services.errors import ConfigurationError
from services.limits import MAX_ENVS_PER_ACTOR


@pytest.mark.parametrize("settings", [LearnerSettings, TrainSettings])
@pytest.mark.parametrize(("algorithm", "envs_per_actor"), [("impala", 64), ("dqn", 4), ("sac", 1)])
def test_the_algorithm_says_how_many_environments_unless_somebody_does(settings, algorithm: str, envs_per_actor: int):
    arguments = ["--algorithm", algorithm]
    assert settings.from_command_line("rollcast", arguments).envs_per_actor == envs_per_actor
    assert settings.from_command_line("rollcast", [*arguments, "--envs-per-actor", "7"]).envs_per_actor == 7


def test_an_actor_leaves_it_to_the_learner():
    assert ActorSettings.from_command_line("rollcast", []).envs_per_actor is None


@pytest.mark.parametrize("settings", [LearnerSettings, ActorSettings])
def test_more_environments_than_can_be_agreed_are_refused(settings):
    most = settings.from_command_line("rollcast", ["--envs-per-actor", str(MAX_ENVS_PER_ACTOR)])
    assert most.envs_per_actor == MAX_ENVS_PER_ACTOR
    with pytest.raises(ConfigurationError, match=f"less than or equal to {MAX_ENVS_PER_ACTOR}"):
        settings.from_command_line("rollcast", ["--envs-per-actor", str(MAX_ENVS_PER_ACTOR + 1)])
