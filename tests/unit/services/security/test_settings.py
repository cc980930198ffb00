"""The settings of a server's security in processes that are clients, too."""

import secrets
from pathlib import Path

import pytest

from rollcast.services.errors import ConfigurationError
from rollcast.tools.relay.settings import RelaySettings
from rollcast.tools.scaling.settings import ScalerSettings


def test_a_relay_requires_the_tokens_of_its_file(tmp_path: Path):
    path = tmp_path / "tokens"
    path.write_text(f"actor:{secrets.token_hex(32)}\n")
    path.chmod(0o600)
    settings = RelaySettings.from_command_line("rollcast relay", ["--tokens-file", str(path)])
    assert settings.server_security().tokens is not None
    assert RelaySettings.from_command_line("rollcast relay", []).server_security().tokens is None


@pytest.mark.parametrize("settings_class", [RelaySettings, ScalerSettings])
def test_an_address_that_is_open_to_others_needs_tls_or_a_word(settings_class: type[RelaySettings | ScalerSettings]):
    options = ["--address", "0.0.0.0:0"]
    with pytest.raises(ConfigurationError, match="insecure"):
        settings_class.from_command_line("rollcast", options).server_security()
    settings_class.from_command_line("rollcast", [*options, "--insecure"]).server_security()
