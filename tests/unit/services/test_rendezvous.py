import socket
import stat
from pathlib import Path

import pytest

from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.replay_serve import ReplayServeSettings
from rollcast.services.address import parse_address, parse_listening_address
from rollcast.services.client.channel import make_channel
from rollcast.services.errors import ConfigurationError, LearnerUnreachableError
from rollcast.services.rendezvous import (
    Announcement,
    Rendezvous,
    advertised_address,
    announced,
    read_rendezvous,
    withdraw_rendezvous,
    write_rendezvous,
)

HERE = Rendezvous(address="node7:34567", server_name="learner")


def test_only_the_owner_may_read_what_was_written(tmp_path: Path):
    path = tmp_path / "learner.address"
    write_rendezvous(path, Rendezvous(address="old:1"))
    write_rendezvous(path, HERE)
    assert read_rendezvous(path) == HERE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["learner.address"]


def test_a_server_removes_its_own_file_only(tmp_path: Path):
    path = tmp_path / "learner.address"
    write_rendezvous(path, HERE)
    withdraw_rendezvous(path, Rendezvous(address="node7:1"))
    assert read_rendezvous(path) == HERE
    withdraw_rendezvous(path, HERE)
    assert not path.exists()
    withdraw_rendezvous(path, HERE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no address; expected a file from a learner with --address-file"),
        ('{"address": "node', "has no address"),
        ("[]", "has no address"),
        ("[" * 100_000, "has no address"),
        ('{"address": "unix:/tmp/\\ud800"}', "has no address"),
        ('{"address": "node7:1", "server_name": "\\ud800"}', "has no address"),
        ('{"address": "nonsense"}', "the address 'nonsense' cannot be used"),
        ('{"address": "file:/other"}', "contains another file, 'file:/other'; expected host:port"),
    ],
)
def test_what_is_no_address_is_refused(content: str, message: str, tmp_path: Path):
    path = tmp_path / "learner.address"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read_rendezvous(path)


def test_a_file_that_is_not_there_is_a_learner_that_is_not_there(tmp_path: Path):
    with pytest.raises(LearnerUnreachableError, match="has not started, or has ended"):
        make_channel(f"file:{tmp_path}/learner.address")


def test_a_name_that_is_null_is_that_of_the_address(tmp_path: Path):
    path = tmp_path / "learner.address"
    path.write_text('{"address": "node7:34567", "server_name": null}')
    assert read_rendezvous(path) == Rendezvous(address="node7:34567")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        write_rendezvous(tmp_path / "nowhere" / "learner.address", HERE)


@pytest.mark.parametrize(
    ("listening", "host", "expected"),
    [
        ("0.0.0.0:5", "", f"{socket.gethostname()}:5"),
        ("[::]:5", "", f"{socket.gethostname()}:5"),
        ("10.1.2.3:5", "", "10.1.2.3:5"),
        ("0.0.0.0:5", "node7", "node7:5"),
        ("[::1]:5", "", "[::1]:5"),
        ("unix:/tmp/learner", "node7", "unix:/tmp/learner"),
    ],
)
def test_other_machines_are_told_a_name_that_they_reach(listening: str, host: str, expected: str):
    assert advertised_address(listening, host) == expected


@pytest.mark.parametrize("text", ["file:/shared/learner.address", "file:///shared/learner.address"])
def test_a_file_is_an_address_of_clients(text: str):
    address = parse_address(text)
    assert address.rendezvous == Path("/shared/learner.address")
    assert not address.is_local
    with pytest.raises(ConfigurationError, match="is a file; expected host:port or unix:/path for listening"):
        parse_listening_address(text)


def test_an_address_without_a_file_is_refused():
    with pytest.raises(ConfigurationError, match="names no file; expected 'file:/path'"):
        parse_address("file:")


def test_a_server_is_announced_until_the_block_ends(tmp_path: Path):
    file = tmp_path / "learner.address"
    with announced("127.0.0.1:5", Announcement(file, "node7", "learner")):
        assert read_rendezvous(file) == Rendezvous(address="node7:5", server_name="learner")
    assert not file.exists()
    with announced("127.0.0.1:5", None):
        assert list(tmp_path.iterdir()) == []


def test_a_file_of_somebody_else_is_not_replaced_by_a_broken_one(tmp_path: Path):
    (tmp_path / "learner.address").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_rendezvous(tmp_path / "learner.address", HERE)
    assert [file.name for file in tmp_path.iterdir()] == ["learner.address"]


@pytest.mark.parametrize("kind", [ServingSettings, ReplayServeSettings])
def test_every_server_announces_itself_in_a_file(kind: type[ServingSettings], tmp_path: Path):
    assert kind().announcement() is None
    file = tmp_path / "server.address"
    settings = kind(address_file=file, advertised_host="node7", tls_server_name="learner")
    assert settings.announcement() == Announcement(file, "node7", "learner")


def test_a_host_for_redirected_actors_needs_no_file():
    assert ServingSettings(advertised_host="node7", ingest_processes=1).announcement() is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"advertised_host": "node7"}, "--advertised-host: 'node7' is given without --address-file"),
        ({"tls_server_name": "learner"}, "--tls-server-name: 'learner' is given without --address-file"),
        ({"address_file": Path("nowhere/at/all")}, "there is no folder 'nowhere/at'; expected an existing one"),
    ],
)
def test_what_no_client_would_find_is_refused(given: dict[str, object], message: str):
    with pytest.raises(ConfigurationError, match=message):
        ServingSettings(**given).announcement()
