import pytest

from rollcast.learner.settings.train import TrainSettings
from rollcast.services.errors import ConfigurationError

SERVING = ("--serve-environments", "localhost:50052")


def settings_of(*arguments):
    return TrainSettings.from_command_line("rollcast train", list(arguments))


class TestServedEnvironments:
    def test_have_one_actor_and_no_goal_of_another_environment(self):
        settings = settings_of(*SERVING, "--serve-websockets", "localhost:50054", "--n-actors", "1")
        assert (settings.n_actors, settings.env_id) == (1, "dialled-in")
        assert settings_of(*SERVING).n_actors == 1
        assert settings.dial_in().websocket_address == "localhost:50054"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--env-id", "CartPole-v1"), "--env-id is given with"),
            (("--vectorization", "sync"), "--vectorization is given with"),
            (("--recipe", "ppo-cartpole"), "--env-id is given with"),
            (("--n-actors", "2"), "--n-actors 2 with --serve-environments localhost:50052; expected 1"),
            (("--actor-kind", "sequential"), "--actor-kind sequential with .* expected subprocess"),
            (("--deterministic",), "--deterministic with .* clients decide when they step"),
        ],
    )
    def test_exclude_what_they_cannot_do(self, arguments, said):
        with pytest.raises(ConfigurationError, match=said) as refused:
            settings_of(*SERVING, *arguments)
        assert "\n" not in str(refused.value)
