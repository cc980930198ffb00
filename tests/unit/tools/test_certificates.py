import datetime
import ipaddress
import ssl
import stat

import pytest
from cryptography import x509

from rollcast.services.errors import ConfigurationError
from rollcast.services.security.security import ClientSecurity, ServerSecurity
from rollcast.services.security.tokens import Role
from rollcast.tools import cli
from rollcast.tools.certificates import make_certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates") / "new"
    make_certificates(folder, hosts=("learner", "192.0.2.7", "localhost"), days=30)
    return folder


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_files_are_readable_by_their_owner_only(made):
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in made.iterdir()} == {0o600}
    assert len(list(made.iterdir())) == 14


def test_server_certificate_names_all_hosts(made):
    names = read(made / "server.pem").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "learner"]
    assert names.get_values_for_type(x509.IPAddress) == [*map(ipaddress.ip_address, ("127.0.0.1", "::1", "192.0.2.7"))]


@pytest.mark.parametrize("name", ["server", "actor", "viewer", "operator"])
def test_authority_signed_every_certificate(made, name):
    certificate, authority = read(made / f"{name}.pem"), read(made / "ca.pem")
    certificate.verify_directly_issued_by(authority)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made / f"{name}.pem", made / f"{name}.key")
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=29) < left <= datetime.timedelta(days=30)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_client_tokens_match_those_of_the_learner(made):
    tokens = ServerSecurity.from_files(tokens_file=made / "tokens").tokens
    for role in Role:
        token = ClientSecurity(token_file=made / f"{role.value}.token").token_for("localhost:1")
        assert tokens.role_of(token) is role


def test_overwrites_no_file(made):
    before = (made / "server.key").read_bytes()
    with pytest.raises(ConfigurationError, match=r"has ca.pem, .* already; expected a folder without them"):
        make_certificates(made)
    assert (made / "server.key").read_bytes() == before


def test_rejects_host_that_cannot_be_in_a_certificate(tmp_path):
    with pytest.raises(ConfigurationError, match="the host 'schön' cannot be in a certificate"):
        make_certificates(tmp_path / "x", hosts=("schön",))
    assert not (tmp_path / "x").exists()


def test_command_makes_files_once_and_prints_options_without_tokens(tmp_path, capsys):
    assert cli.main(["certs", str(tmp_path / "certs"), "--host", "learner", "--host", "192.0.2.9", "--days", "3"]) == 0
    said = capsys.readouterr().out
    assert f"--tls-client-ca {tmp_path}/certs/ca.pem" in said
    for file in (tmp_path / "certs").glob("*.token"):
        assert file.read_text().strip() not in said
    assert cli.main(["certs", str(tmp_path / "certs")]) == 2
    assert "already" in capsys.readouterr().err
