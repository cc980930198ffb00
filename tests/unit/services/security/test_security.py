"""Tests of what may be served in the open, of files that go together, and of the documentation of roles."""

import re

import pytest
from pydantic import SecretStr

from rollcast.actor.settings import ActorSettings
from rollcast.learner.settings.learner import ServingSettings
from rollcast.services.errors import ConfigurationError
from rollcast.services.rpcs import RPCS
from rollcast.services.security.security import ClientSecurity, ServerSecurity
from rollcast.services.security.tokens import Role
from rollcast.tools.certificates import make_certificates
from rollcast.tools.relay.settings import RelaySettings
from rollcast.tools.scaling.settings import ScalerSettings
from rollcast.tools.settings import StatusSettings
from tests.documents import text_of

TOKEN = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "made"
    make_certificates(folder)
    return folder


OPEN = ["0.0.0.0:1", "[::]:1", "192.0.2.7:1", "learner:1", "localhost.example.org:1", "[2001:db8::1]:1"]
LOCAL = ["localhost:1", "LOCALHOST:1", "127.0.0.1:1", "127.3.2.1:1", "[::1]:1", "unix:/tmp/x"]


class TestWhereALearnerServes:
    @pytest.mark.parametrize("address", OPEN)
    def test_others_reach_it(self, keys, address):
        with pytest.raises(ConfigurationError, match=r"has no TLS: .* give --tls-cert .* or --insecure"):
            ServerSecurity().check_address(address)
        ServerSecurity(insecure=True).check_address(address)
        files = {"tls_cert": keys / "server.pem", "tls_key": keys / "server.key"}
        ServerSecurity.from_files(**files).check_address(address)

    @pytest.mark.parametrize("address", LOCAL)
    def test_nobody_else_reaches_it(self, address):
        ServerSecurity().check_address(address)

    def test_tokens_alone_do_not_hide_what_is_sent(self, keys):
        security = ServerSecurity.from_files(tokens_file=keys / "tokens")
        with pytest.raises(ConfigurationError, match="has no TLS"):
            security.check_address("0.0.0.0:1")


class TestFilesOfALearner:
    @pytest.mark.parametrize(
        ("given", "match"),
        [
            (["tls_cert"], "tls_cert is given and tls_key is not; expected both; give --tls-key"),
            (["tls_key"], "tls_key is given and tls_cert is not"),
            (["tls_client_ca"], "tls_client_ca is given without tls_cert"),
        ],
    )
    def test_those_that_need_each_other(self, keys, given, match):
        with pytest.raises(ConfigurationError, match=match):
            ServerSecurity.from_files(**dict.fromkeys(given, keys / "ca.pem"))

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"tls_key": "actor.key"}, "tls_cert .*server.pem.* and tls_key .*actor.key.* cannot be used"),
            ({"tls_cert": "nothing"}, "No such file"),
            ({"tls_cert": "tokens"}, "expected a certificate in PEM"),
            ({"tls_client_ca": "tokens"}, "tls_client_ca .* expected certificates of authorities in PEM"),
            ({"tls_client_ca": "nothing"}, "tls_client_ca .* cannot be used"),
        ],
    )
    def test_those_that_cannot_be_used(self, keys, changes, match):
        files = {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.pem"} | changes
        with pytest.raises(ConfigurationError, match=match):
            ServerSecurity.from_files(**{name: keys / file for name, file in files.items()})


class TestClients:
    def test_a_token_does_not_travel_in_the_open(self, keys):
        for security in (ClientSecurity(token=TOKEN), ClientSecurity(token_file=keys / "actor.token")):
            with pytest.raises(ConfigurationError, match="a token would be sent to 'learner:1' without TLS"):
                security.token_for("learner:1")
        assert ClientSecurity(token=TOKEN).token_for("localhost:1") == TOKEN
        assert ClientSecurity(token=TOKEN, insecure=True).token_for("learner:1") == TOKEN
        assert ClientSecurity(token=TOKEN, tls_ca=keys / "ca.pem").token_for("learner:1") == TOKEN

    def test_a_unix_socket_gets_none(self):
        assert ClientSecurity(token=TOKEN).token_for("unix:/tmp/x") is None

    def test_a_file_is_read_anew(self, tmp_path):
        file = tmp_path / "token"
        file.write_text(f"{TOKEN}\n")
        file.chmod(0o600)
        security = ClientSecurity(token_file=file)
        assert security.token_for("localhost:1") == TOKEN
        file.write_text(f"{TOKEN}2\n")
        assert security.token_for("localhost:1") == f"{TOKEN}2"

    @pytest.mark.parametrize(
        ("given", "match"),
        [
            ({"tls_cert": "actor.pem", "tls_ca": "ca.pem"}, "tls_cert is given and tls_key is not"),
            ({"tls_cert": "actor.pem", "tls_key": "actor.key"}, "tls_cert is given without tls_ca"),
            ({"token": TOKEN, "token_file": "actor.token"}, "token and token_file are both given"),
            ({"token": "short"}, "token has 5 characters"),
        ],
    )
    def test_those_that_need_each_other(self, keys, given, match):
        values = {name: value if name == "token" else keys / value for name, value in given.items()}
        with pytest.raises(ConfigurationError, match=match):
            ClientSecurity(**values)

    def test_is_never_shown(self):
        assert TOKEN not in repr(ClientSecurity(token=TOKEN))


class TestSettings:
    def test_a_token_from_the_environment_is_neither_shown_nor_written(self, monkeypatch):
        monkeypatch.setenv("ROLLCAST_TOKEN", TOKEN)
        for kind in (ActorSettings, StatusSettings):
            settings = kind.from_command_line("rollcast", [])
            assert isinstance(settings.token, SecretStr)
            assert TOKEN not in repr(settings) + str(settings.model_dump(mode="json")) + settings.model_dump_json()
            assert settings.client_security().token == TOKEN
        # a learner takes none, and has none in what its run keeps
        assert TOKEN not in ServingSettings.from_command_line("rollcast", []).model_dump_json()

    def test_a_token_that_cannot_be_one_is_not_shown_either(self, tmp_path):
        file = tmp_path / "settings.yaml"
        file.write_text("token: 1234567890123456789")
        with pytest.raises(ConfigurationError, match="--token: what is given is not valid") as caught:
            ActorSettings.from_command_line("rollcast", ["--config", str(file)])
        assert "12345" not in str(caught.value)

    @pytest.mark.parametrize("kind", [ServingSettings, RelaySettings, ScalerSettings])
    def test_a_server_that_others_reach(self, kind):
        settings = kind.from_command_line("rollcast", ["--address", "0.0.0.0:1"])
        with pytest.raises(ConfigurationError, match="has no TLS"):
            settings.server_security()
        settings = kind.from_command_line("rollcast", ["--address", "0.0.0.0:1", "--insecure"])
        assert settings.server_security().insecure

    def test_a_relay_requires_the_tokens_of_its_file(self, keys):
        settings = RelaySettings.from_command_line("rollcast relay", ["--tokens-file", str(keys / "tokens")])
        assert settings.server_security().tokens is not None
        assert RelaySettings.from_command_line("rollcast relay", []).server_security().tokens is None


@pytest.mark.parametrize("role", list(Role))
def test_the_documentation_names_every_call_of_a_role(role: Role):
    (row,) = re.findall(rf"^\| `{role.value}` \|(.*)$", text_of("secure.md"), re.MULTILINE)
    calls = {method.rpartition("/")[2] for method, rpc in RPCS.items() if rpc.role is role}
    named = set(re.findall(r"`([A-Z]\w+)`", row.replace("reflection", "`ServerReflectionInfo`")))
    assert named == calls
