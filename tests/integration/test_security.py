"""TLS and tokens as they are used: replaced while streams are open, by whole processes, and not on unix sockets."""

import shutil

import pytest

from rollcast.services.client import health_probe
from rollcast.services.client.client import LearnerClient
from rollcast.services.security.security import ClientSecurity, ServerSecurity
from rollcast.tools.certificates import make_certificates
from tests.certificates import calling, security_of, serving
from tests.integration.learner_fakes import serve
from tests.processes import DEADLINE_S, free_port, rollcast, running, status_of, wait_until


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


def learner_of(keys, address="localhost:0"):
    in_use = keys / "in_use"
    security = ServerSecurity.from_files(
        tls_cert=in_use / "server.pem",
        tls_key=in_use / "server.key",
        tls_client_ca=in_use / "ca.pem",
        tokens_file=in_use / "tokens",
    )
    return serve(address, security=security)


def client_of(keys, folder, address):
    return LearnerClient(address, security=security_of(keys / folder, "viewer"))


def test_warns_once_about_serving_without_tls(caplog):
    with serve("0.0.0.0:0", security=ServerSecurity(insecure=True)) as learner:
        address = learner.address
    with serve(address, security=ServerSecurity(insecure=True)):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        f"{address} is served without TLS: anyone on the network path can read everything, and anyone who "
        "reaches it can join, steer and stop the learner"
    ]


def test_health_probe_works_with_mutual_tls(keys, monkeypatch, capsys):
    with learner_of(keys) as learner:
        assert health_probe.main([learner.address]) == 1
        monkeypatch.setenv("ROLLCAST_TLS_CERT", str(keys / "first/server.pem"))
        monkeypatch.setenv("ROLLCAST_TLS_KEY", str(keys / "first/server.key"))
        assert health_probe.main([learner.address]) == 1
        monkeypatch.setenv("ROLLCAST_TLS_CA", str(keys / "first/ca.pem"))
        capsys.readouterr()
        assert health_probe.main([learner.address]) == 0
        assert capsys.readouterr().err == ""
        monkeypatch.delenv("ROLLCAST_TLS_KEY")
        assert health_probe.main([learner.address]) == 2
        assert "ROLLCAST_TLS_CERT and ROLLCAST_TLS_KEY" in capsys.readouterr().err


@pytest.mark.slow
def test_training_works_with_mutual_tls_and_tokens(keys):
    """A learner for remote actors, an actor with a token from the environment, one without a token, and a viewer."""
    folder, run = keys / "first", keys / "run"
    address = f"localhost:{free_port()}"
    learning = (
        *("learner", "learner", "--address", address, "--run-dir", run, "--spaces-from", "first_actor"),
        *serving(folder),
        *("--stop-return", "1e9", "--log-level", "DEBUG", "--algorithm", "impala"),
    )
    tokens = {role: (folder / f"{role}.token").read_text().strip() for role in ("actor", "viewer", "operator")}
    acting = ("actor", "--learner-address", address, "--log-level", "DEBUG", *calling(folder, "actor")[:-2])
    with running(*learning) as learner, running(*acting, ROLLCAST_TOKEN=tokens["actor"]) as actor:
        security = ClientSecurity(
            tls_ca=folder / "ca.pem",
            tls_cert=folder / "operator.pem",
            tls_key=folder / "operator.key",
            token=tokens["operator"],
        )
        with LearnerClient(address, security=security) as client:
            wait_until(lambda: status_of(client).updates > 2, "updates")
            stranger = rollcast("actor", "--learner-address", address, *calling(folder, "actor")[:-2])
            assert (stranger.returncode, "UnauthenticatedError" in stranger.stderr) == (1, True)
            seen = rollcast("status", "--address", address, "--json-output", *calling(folder, "viewer"))
            assert (seen.returncode, '"phase": "training"' in seen.stdout) == (0, True), seen.stderr
            small = rollcast("status", "--address", address, *calling(folder, "actor"))
            assert (small.returncode, "role is actor" in small.stderr) == (1, True)
            client.stop()
        said = [process.communicate(timeout=DEADLINE_S)[0] for process in (learner, actor)]
        assert (learner.returncode, actor.returncode) == (0, 0), said
    written = [file.read_bytes() for file in run.rglob("*") if file.is_file()]
    for token in tokens.values():
        assert not any(token in text for text in (*said, stranger.stderr, seen.stdout))
        assert not any(token.encode() in content for content in written)
