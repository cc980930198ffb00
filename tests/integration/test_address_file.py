"""`--address-file`: a learner anywhere, at any free port, whose actors share nothing with it but a folder."""

import json
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from tests.processes import rollcast, running, wait_until

pytestmark = pytest.mark.slow


def updates_of(address: str) -> int:
    with suppress(RollcastError), LearnerClient(address, timeout_s=5.0) as client:
        return client.status().updates
    return 0


def test_an_actor_waits_for_the_file_and_follows_a_learner_that_moved(tmp_path: Path):
    file = tmp_path / "learner.address"
    address = f"file:{file}"
    learning = ("learner", "learner", "--address", "127.0.0.1:0", "--address-file", file, "--stop-return", "1e9")
    learning = (*learning, "--spaces-from", "first_actor")
    with running("actor", "--learner-address", address, "--envs-per-actor", 8) as actor:
        ports = []
        for options in (("--run-dir", tmp_path / "run"), ("--resume", tmp_path / "run")):
            with running(*learning, *options) as learner:
                wait_until(lambda: updates_of(address) > 3, "updates", 90)
                ports.append(json.loads(file.read_text())["address"])
                assert "training" in rollcast("status", "--address", address).stdout
                learner.send_signal(signal.SIGTERM)
                assert learner.wait(60) == 0
            assert not file.exists()
        assert ports[0] != ports[1]
        assert actor.poll() is None


def test_certificates_name_the_learner_though_nobody_knew_its_machine(tmp_path: Path):
    made = rollcast("certs", tmp_path / "certs", "--host", "rollcast-learner")
    assert made.returncode == 0, made.stderr
    certs, file = tmp_path / "certs", tmp_path / "learner.address"

    def client(role: str) -> tuple[object, ...]:
        own = ("--tls-cert", certs / f"{role}.pem", "--tls-key", certs / f"{role}.key")
        return ("--tls-ca", certs / "ca.pem", *own, "--token-file", certs / f"{role}.token")

    serving = (
        "--tls-cert",
        certs / "server.pem",
        "--tls-key",
        certs / "server.key",
        "--tls-client-ca",
        certs / "ca.pem",
    )
    naming = ("--address-file", file, "--advertised-host", "127.0.0.1", "--tls-server-name", "rollcast-learner")
    learning = ("learner", "learner", "--address", "0.0.0.0:0", *serving, "--tokens-file", certs / "tokens", *naming)
    with (
        running(*learning, "--run-dir", tmp_path / "run", "--stop-return", "1e9"),
        running("actor", "--learner-address", f"file:{file}", "--envs-per-actor", 8, *client("actor")),
    ):
        asked = ("status", "--address", f"file:{file}", *client("viewer"), "--json-output")

        def has_learnt() -> bool:
            done = rollcast(*asked)
            return done.returncode == 0 and json.loads(done.stdout)["updates"] > 0

        wait_until(has_learnt, "updates", 90)
    refused = rollcast("learner", "--address", f"file:{file}", "--run-dir", tmp_path / "other")
    assert refused.returncode == 2
    assert "is a file; expected host:port or unix:/path to listen at" in refused.stderr
