"""Credentials from files that are replaced."""

import logging
import shutil

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError, UnauthenticatedError
from rollcast.services.security.security import ClientSecurity, ServerSecurity
from rollcast.tools.certificates import make_certificates
from tests.integration.learner_fakes import serve


@pytest.fixture
def keys(tmp_path):
    """Two folders of certificates, `first` and `second`, and `in_use`, which is a copy of the first."""
    for name in ("first", "second"):
        make_certificates(tmp_path / name)
    shutil.copytree(tmp_path / "first", tmp_path / "in_use")
    return tmp_path


def replace(keys, *files):
    """Puts files of the second folder in place of those in use, each at once, as a rotation does."""
    for file in files:
        shutil.copy(keys / "second" / file, keys / "in_use/new")
        (keys / "in_use/new").replace(keys / "in_use" / file)


def serving(keys, address="localhost:0"):
    in_use = keys / "in_use"
    security = ServerSecurity.from_files(
        tls_cert=in_use / "server.pem",
        tls_key=in_use / "server.key",
        tls_client_ca=in_use / "ca.pem",
        tokens_file=in_use / "tokens",
    )
    return serve(address, security=security)


def client_of(keys, folder, address):
    folder = keys / folder
    security = ClientSecurity(
        tls_ca=folder / "ca.pem",
        tls_cert=folder / "viewer.pem",
        tls_key=folder / "viewer.key",
        token_file=folder / "viewer.token",
    )
    return LearnerClient(address, security=security)


def test_replaced_files_affect_new_connections_only(keys, caplog):
    caplog.set_level(logging.INFO)
    with serving(keys) as learner, client_of(keys, "first", learner.address) as old:
        stream = old.watch_status(0.1)
        next(stream)

        # a certificate whose key has not come yet
        replace(keys, "server.pem")
        with client_of(keys, "first", learner.address) as client:
            assert client.status().env_steps == 12
        assert "the certificate stays as it was" in caplog.text

        replace(keys, "server.key", "ca.pem", "tokens")
        with client_of(keys, "second", learner.address) as client:
            assert client.status().env_steps == 12
        with client_of(keys, "first", learner.address) as client, pytest.raises(LearnerUnreachableError):
            client.status()
        assert next(stream).env_steps == 12
        # over the connection that is open, a call of the old token
        with pytest.raises(UnauthenticatedError, match="unknown to this learner"):
            old.status()
        stream.close()


def test_client_reads_its_files_for_each_connection(keys):
    with serving(keys) as learner:
        with client_of(keys, "in_use", learner.address) as client:
            assert client.status().env_steps == 12
        replace(keys, *(file.name for file in (keys / "second").iterdir()))
        with client_of(keys, "in_use", learner.address) as client:
            assert client.status().env_steps == 12


def test_unix_socket_needs_neither_tls_nor_token(keys):
    with serving(keys, f"unix:{keys}/socket") as learner, LearnerClient(learner.address) as client:
        client.pause()
    assert learner.control.calls == ["pause"]
