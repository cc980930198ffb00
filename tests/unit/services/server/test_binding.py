import os
import re
import socket

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import (
    AddressInUseError,
    ConfigurationError,
)
from rollcast.services.security.security import ServerSecurity
from tests.integration.learner_fakes import serve


def test_rejects_port_of_another_server(learner, client):
    with pytest.raises(AddressInUseError, match=re.escape(f"'{learner.address}' is in use")), serve(learner.address):
        pass
    assert client.status().env_steps == 12


@pytest.mark.parametrize(
    ("address", "match"),
    [
        ("no-such-host.invalid:0", "cannot be resolved"),
        ("192.0.2.1:0", "cannot be bound"),
        ("unix:/no/such/folder/x", "has no folder"),
        ("nonsense", "cannot be used"),
    ],
)
def test_rejects_address_that_cannot_be_taken(address, match):
    with pytest.raises(ConfigurationError, match=match), serve(address, security=ServerSecurity(insecure=True)):
        pass


def test_a_unix_socket_is_served_guarded_and_removed(tmp_path):
    path = tmp_path / "learner.sock"
    with serve(f"unix:{path}") as learner:
        assert learner.server.port == 0
        assert learner.address == f"unix:{path}"
        with LearnerClient(learner.address) as client:
            assert client.status().env_steps == 12
            with pytest.raises(AddressInUseError, match=r"learner\.sock"), serve(learner.address):
                pass
            assert client.is_serving()
        with LearnerClient(learner.address) as another:
            assert another.is_serving()
    assert list(tmp_path.iterdir()) == []


def test_stale_socket_is_replaced_but_no_file(tmp_path):
    path = tmp_path / "learner.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    with serve(f"unix:{path}") as learner, LearnerClient(learner.address) as client:
        assert client.is_serving()
    path.write_text("mine")
    with pytest.raises(ConfigurationError, match="is not a socket"), serve(f"unix:{path}"):
        pass
    assert path.read_text() == "mine"


def test_rejects_folder_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root, whom CI may run as, may write anywhere
    with pytest.raises(ConfigurationError, match="may write"), serve(f"unix:{tmp_path}/x"):
        pass
