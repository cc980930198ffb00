import logging
import shutil

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError, UnauthenticatedError
from tests.certificates import make_two, security_of, server_security_of
from tests.integration.learner_fakes import serve


@pytest.fixture
def keys(tmp_path):
    return make_two(tmp_path)


def replace(keys, *files):
    """Puts files of the second folder in place of those in use, each at once, as a rotation does."""
    for file in files:
        shutil.copy(keys / "second" / file, keys / "in_use/new")
        (keys / "in_use/new").replace(keys / "in_use" / file)


def serving(keys, address="localhost:0"):
    return serve(address, security=server_security_of(keys / "in_use"))


def client_of(keys, folder, address):
    return LearnerClient(address, security=security_of(keys / folder, "viewer"))


def test_replaced_files_affect_new_connections_only(keys, caplog):
    caplog.set_level(logging.INFO)
    with serving(keys) as learner, client_of(keys, "first", learner.address) as old:
        stream = old.watch_status(0.1)
        next(stream)

        # a certificate whose key has not come yet
        replace(keys, "server.pem")
        with client_of(keys, "first", learner.address) as client:
            assert client.status().env_steps == 12
        assert "the old certificate stays in use" in caplog.text

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
