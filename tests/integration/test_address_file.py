"""`--address-file`: a learner anywhere, at any free port, whose actors share nothing with it but a folder."""

import json
import signal
from pathlib import Path

import pytest

from tests.certificates import calling, security_of, serving
from tests.processes import completed, ended, refused, rollcast, running, status_of, wait_until

pytestmark = pytest.mark.slow


def test_an_actor_waits_for_the_file_and_follows_a_learner_that_moved(tmp_path: Path):
    file = tmp_path / "learner.address"
    address = f"file:{file}"
    learning = ("learner", "learner", "--address", "127.0.0.1:0", "--address-file", file, "--stop-return", "1e9")
    learning += ("--spaces-from", "first_actor", "--algorithm", "impala")
    with running("actor", "--learner-address", address, "--envs-per-actor", 8) as actor:
        ports = []
        for options in (("--run-dir", tmp_path / "run"), ("--resume", tmp_path / "run")):
            with running(*learning, *options) as learner:
                wait_until(lambda: status_of(address).updates > 3, "updates")
                ports.append(json.loads(file.read_text())["address"])
                assert "training" in rollcast("status", "--address", address).stdout
                assert ended(learner, signal.SIGTERM) == 0
            assert not file.exists()
        assert ports[0] != ports[1]
        assert actor.poll() is None


def test_certificates_name_the_learner_though_nobody_knew_its_machine(tmp_path: Path):
    completed("certs", tmp_path / "certs", "--host", "rollcast-learner")
    certs, file = tmp_path / "certs", tmp_path / "learner.address"

    naming = ("--address-file", file, "--advertised-host", "127.0.0.1", "--tls-server-name", "rollcast-learner")
    learning = ("learner", "learner", "--address", "0.0.0.0:0", *serving(certs), *naming, "--algorithm", "impala")
    with (
        running(*learning, "--run-dir", tmp_path / "run", "--stop-return", "1e9"),
        running("actor", "--learner-address", f"file:{file}", "--envs-per-actor", 8, *calling(certs, "actor")),
    ):
        wait_until(lambda: status_of(f"file:{file}", security_of(certs, "viewer")).updates, "updates")
        done = completed("status", "--address", f"file:{file}", *calling(certs, "viewer"), "--json-output")
        assert json.loads(done.stdout)["updates"] > 0
    said = refused("learner", "--address", f"file:{file}", "--run-dir", tmp_path / "other")
    assert "is a file; expected host:port or unix:/path for listening" in said
