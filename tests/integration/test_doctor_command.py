"""`rollcast doctor` beside real learners and actors; unit/tools/doctor/test_diagnosis.py has all its findings."""

import json
import signal
from pathlib import Path

import pytest

from rollcast.learner.checkpoints.listing import state_of
from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.client.client import LearnerClient
from rollcast.services.status.status import Phase
from tests.processes import ended, free_port, rollcast, running, status_of, wait_until

pytestmark = pytest.mark.slow


def findings(address: str) -> tuple[int, list[tuple[str, str]]]:
    done = rollcast("doctor", "--address", address, "--json-output")
    document = json.loads(done.stdout)
    return done.returncode, [(finding["severity"], finding["what"]) for finding in document["findings"]]


def test_reports_no_learner_then_nothing_wrong_then_a_lost_actor(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    code, found = findings(address)
    assert (code, found[0][0], "no learner answers" in found[0][1]) == (1, "wrong", True)
    options = ("--address", address, "--env-id", "CartPole-v1", "--run-dir", tmp_path / "run", "--stop-return", 1e9)
    # updates that are soon over: the command shares the processor with them
    options += ("--algorithm", "impala")
    with running("learner", "learner", *options), LearnerClient(address) as client:
        with running("actor", "--learner-address", address, "--env-id", "CartPole-v1", "--actor-id", "one") as acting:
            wait_until(lambda: status_of(client).updates > 5, "updates")
            code, found = findings(address)
            assert (code, [severity for severity, _ in found]) == (0, ["note"] * len(found))
            ended(acting, signal.SIGKILL)
        wait_until(lambda: client.status().actors_alive == 0, "the actor's loss to be noticed")
        code, found = findings(address)
        assert code == 1
        assert any("actor one (slot 0) is lost" in what for _, what in found)


def test_a_learner_that_has_finished_is_not_asked_again_later(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    run = RunDirectory(tmp_path / "run")
    options = ("--address", address, "--run-dir", run.path, "--when-finished", "serve", "--batch-size", 2)
    options += ("--algorithm", "impala", "--n-rollout-steps", 8, "--envs-per-actor", 2, "--total-steps", 16)
    with running("learner", "learner", *options), LearnerClient(address) as client:
        with running("actor", "--learner-address", address):
            wait_until(lambda: status_of(client).phase is Phase.FINISHED, "the end of training")
        assert "nothing shows whether the run learnt" in rollcast("doctor", "--address", address).stdout
        wait_until(lambda: state_of(run) == "serving", "its folder to say so")
        assert rollcast("doctor", run.path).stdout.startswith("serving, 16 steps, 1 update\n")
    assert state_of(run) == "finished"
