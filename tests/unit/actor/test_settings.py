import pytest

from rollcast.actor.settings import ActorSettings
from rollcast.services.errors import ConfigurationError


def settings_of(*arguments):
    return ActorSettings.from_command_line("rollcast actor", list(arguments))


class TestServedEnvironments:
    def test_need_no_environment(self):
        settings = settings_of("--serve-environments", "localhost:50052")
        assert settings.dial_in().security.tls is None

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--env-id", "CartPole-v1"), "--env-id is given with --serve-environments localhost:50052"),
            (("--atari",), "--atari is given with --serve-environments"),
            (("--role", "evaluate"), "--role evaluate is given with --serve-environments"),
        ],
    )
    def test_exclude_those_that_the_actor_makes(self, arguments, said):
        settings = settings_of("--serve-environments", "localhost:50052", *arguments)
        with pytest.raises(ConfigurationError, match=said):
            settings.dial_in()

    def test_come_from_other_machines_with_tls_only(self):
        with pytest.raises(ConfigurationError, match="give --serve-tls-cert and --serve-tls-key"):
            settings_of("--serve-environments", "0.0.0.0:50052").dial_in()
        insecure = settings_of("--serve-environments", "0.0.0.0:50052", "--insecure")
        assert insecure.dial_in().security.insecure

    def test_bring_tokens_of_a_file(self, tmp_path):
        tokens = tmp_path / "tokens"
        tokens.write_text("actor:" + "a" * 32)
        tokens.chmod(0o600)
        settings = settings_of("--serve-environments", "localhost:50052", "--serve-tokens-file", str(tokens))
        assert settings.dial_in().security.tokens is not None

    def test_come_in_batches_of_a_size(self):
        assert (
            settings_of("--serve-environments", "localhost:50052", "--serve-batch-size", "4").dial_in().batch_size == 4
        )

    @pytest.mark.parametrize("option", [("--serve-websockets", "localhost:50054"), ("--serve-batch-size", "4")])
    def test_have_an_address(self, option):
        with pytest.raises(ConfigurationError, match=f"{option[0]}: .* is given without --serve-environments"):
            settings_of(*option)


class TestCentralInference:
    @pytest.mark.parametrize(
        "other", [("--serve-environments", "localhost:50052"), ("--role", "evaluate")], ids=["serves", "evaluates"]
    )
    def test_is_for_actors_with_environments_of_their_own(self, other):
        with pytest.raises(
            ConfigurationError, match=f"--inference-address: 'localhost:50055' is given with {other[0]}"
        ):
            settings_of("--inference-address", "localhost:50055", *other)

    @pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:-1", ""])
    def test_a_device_has_a_known_name(self, device):
        with pytest.raises(ConfigurationError, match="--actor-device"):
            settings_of("--actor-device", device)

    def test_a_device_is_there(self):
        assert settings_of().acting_device() is None
        pytest.importorskip("torch")
        with pytest.raises(ConfigurationError, match=r"--actor-device: 'cuda:99', but torch finds \d+ CUDA devices"):
            settings_of("--actor-device", "cuda:99").acting_device()
