"""`rollcast learner` goes and comes back; its actors, which it has not started, wait for it."""

import json
import signal
from pathlib import Path

import pytest

from rollcast.learner.checkpoints.manifest import read_info
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.status.status import LearnerStatus
from tests.processes import free_port, rollcast, running, wait_until

pytestmark = pytest.mark.slow


def status(address: str) -> LearnerStatus | None:
    """Returns the learner's status; None while there is none."""
    try:
        with LearnerClient(address, timeout_s=2.0) as client:
            return client.status()
    except RollcastError:
        return None


def wait_for_updates(address: str) -> None:
    wait_until(lambda: (now := status(address)) is not None and now.updates > 5, "updates", 40)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_actor_continues_with_the_next_learner(number: signal.Signals, tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    learner = ("learner", "learner", "--address", address, "--stop-return", 1e9)
    with running("actor", "--learner-address", address) as actor:
        with running(*learner, "--run-dir", tmp_path / "first") as first:
            wait_for_updates(address)
            first.send_signal(number)
            assert first.wait(60) == (0 if number is signal.SIGTERM else -number)
        with running(*learner, "--run-dir", tmp_path / "second") as second:
            wait_for_updates(address)
            now = status(address)
            assert now is not None
            assert now.policy_lag_mean >= 0, "what was played for the first learner is not learnt from"
            with LearnerClient(address) as client:
                (info,) = client.actors()
                assert info.incarnation == 1, "the same process"
                client.stop()
            # unlike a signal, this is the end of training
            assert second.wait(60) == 0
            assert actor.wait(60) == 0
    assert (tmp_path / "second" / "policy_last.safetensors").is_file()
    assert (tmp_path / "first" / "policy_last.safetensors").is_file() or number is signal.SIGKILL


def test_killed_learner_continues_from_checkpoint_with_the_same_actors(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    learner = ("learner", "learner", "--address", address, "--stop-return", 1e9, "--total-steps", 10**9)
    learner += ("--algorithm", "dqn", "--run-dir", tmp_path / "run", "--resume", "auto", "--log-interval-s", 0.2)
    actor = ("actor", "--learner-address", address, "--envs-per-actor", 4, "--actor-id")
    with running(*actor, "one") as first, running(*actor, "two") as second:
        with running(*learner) as killed:
            wait_for_updates(address)
            with LearnerClient(address) as client:
                checkpoint, version = client.save_checkpoint()
                saved = read_info(Path(checkpoint))
                wait_until(lambda: client.status().updates > saved.n_updates + 20, "more updates", 40)
            killed.send_signal(signal.SIGKILL)
            assert killed.wait(60) == -signal.SIGKILL
        with running(*learner) as resumed:
            wait_until(lambda: status(address) is not None, "the learner again", 40)
            with LearnerClient(address) as client:
                wait_until(lambda: client.status().updates > saved.n_updates + 20, "updates after the checkpoint", 60)
                wait_until(lambda: len([info for info in client.actors() if info.env_steps]) == 2, "both actors", 40)
                now = client.status()
                assert now.env_steps > saved.env_steps
                assert now.policy_version > version
                assert now.rejected_rollouts == 0, "what actors present fits what the learner has"
                assert {info.actor_id: info.incarnation for info in client.actors()} == {"one": 1, "two": 1}
                client.stop()
            assert resumed.wait(60) == 0
            assert first.wait(60) == second.wait(8) == 0
            assert resumed.stdout is not None
            assert f"resuming {tmp_path / 'run'}: {saved.n_updates:,} updates" in resumed.stdout.read()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line["env_steps"] for line in lines]
    assert steps == sorted(steps), "the records of what was made twice are of the second time"
    assert any(count <= saved.env_steps for count in steps), "and those of before the checkpoint are kept"


def test_rejects_resume_of_deterministic_run_with_actor_processes(tmp_path: Path):
    steps = ("--total-steps", 8000, "--deterministic", "--envs-per-actor", 4)
    done = rollcast("train", "--run-dir", tmp_path / "run", *steps)
    assert done.returncode == 0, done.stderr
    done = rollcast("train", "--resume", tmp_path / "run", "--total-steps", 16000)
    assert done.returncode == 2
    assert (
        "--resume with --deterministic, and actors in other processes; expected --actor-kind sequential" in done.stderr
    )
