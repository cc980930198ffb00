"""`rollcast doctor` beside real learners and actors."""

import json
import signal
from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from tests.processes import free_port, rollcast, running, wait_until

pytestmark = pytest.mark.slow


def findings(address: str) -> tuple[int, list[tuple[str, str]]]:
    done = rollcast("doctor", "--address", address, "--json-output")
    document = json.loads(done.stdout)
    return done.returncode, [(finding["severity"], finding["what"]) for finding in document["findings"]]


def test_reports_missing_learner():
    code, found = findings(f"localhost:{free_port()}")
    assert code == 1
    assert found[0][0] == "wrong"
    assert "no learner answers" in found[0][1]


def test_reports_missing_actors_then_a_lost_actor(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    options = ("--address", address, "--env-id", "CartPole-v1", "--run-dir", tmp_path / "run", "--stop-return", 1e9)
    with running("learner", "learner", *options), LearnerClient(address) as client:
        wait_until(lambda: _waited(client) > 10.0, "the learner to have waited long", 60)
        code, found = findings(address)
        assert code == 1
        assert "for an actor to join" in found[0][1]
        with running("actor", "--learner-address", address, "--env-id", "CartPole-v1", "--actor-id", "one") as acting:
            wait_until(lambda: client.status().updates > 5, "updates", 40)
            code, found = findings(address)
            assert (code, [severity for severity, _ in found]) == (0, ["note"] * len(found))
            acting.send_signal(signal.SIGKILL)
            acting.wait(60)
        wait_until(lambda: client.status().actors_alive == 0, "the actor's loss to be noticed")
        code, found = findings(address)
        assert code == 1
        assert any("actor one (slot 0) is lost" in what for _, what in found)


def _waited(client: LearnerClient) -> float:
    try:
        return client.status().waiting_s
    except RollcastError:  # it is not there yet
        return 0.0
