import pytest

from rollcast.actor.settings import ActorSettings
from rollcast.services.errors import ConfigurationError


def settings_of(*arguments):
    return ActorSettings.from_command_line("rollcast actor", list(arguments))


SERVES = ("--serve-environments", "localhost:50052")
ASKS = ("--inference-address", "localhost:50055")


def test_served_environments_need_no_environment_and_may_come_in_batches_of_a_size():
    assert settings_of(*SERVES).dial_in().security.tls is None
    assert settings_of(*SERVES, "--serve-batch-size", "4").dial_in().batch_size == 4


def test_served_environments_come_from_other_machines_with_tls_only():
    with pytest.raises(ConfigurationError, match="give --serve-tls-cert and --serve-tls-key"):
        settings_of("--serve-environments", "0.0.0.0:50052").dial_in()
    insecure = settings_of("--serve-environments", "0.0.0.0:50052", "--insecure")
    assert insecure.dial_in().security.insecure


def test_served_environments_bring_tokens_of_a_file(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("actor:" + "a" * 32)
    tokens.chmod(0o600)
    assert settings_of(*SERVES, "--serve-tokens-file", str(tokens)).dial_in().security.tokens is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*SERVES, "--env-id", "CartPole-v1"), "--env-id is given with --serve-environments localhost:50052"),
        ((*SERVES, "--env-kwargs", "{}"), "--env-kwargs is given with --serve-environments"),
        ((*SERVES, "--atari"), "--atari is given with --serve-environments"),
        ((*SERVES, "--role", "evaluate"), "--role evaluate is given with --serve-environments"),
        (("--serve-websockets", "localhost:50054"), "--serve-websockets: .* is given without --serve-environments"),
        (("--serve-batch-size", "4"), "--serve-batch-size: .* is given without --serve-environments"),
        ((*ASKS, *SERVES), "--inference-address: 'localhost:50055' is given with --serve-environments"),
        ((*ASKS, "--role", "evaluate"), "--inference-address: 'localhost:50055' is given with --role"),
        *((("--actor-device", device), "--actor-device") for device in ("gpu", "cuda:x", "cuda:-1", "")),
    ],
)
def test_options_that_do_not_go_together_or_are_unknown_are_refused_by_name(arguments, said):
    with pytest.raises(ConfigurationError, match=said):
        settings_of(*arguments).dial_in()


def test_a_device_is_there():
    assert settings_of().acting_device() is None
    pytest.importorskip("torch")
    with pytest.raises(ConfigurationError, match=r"--actor-device: 'cuda:99', but torch finds \d+ CUDA devices"):
        settings_of("--actor-device", "cuda:99").acting_device()
