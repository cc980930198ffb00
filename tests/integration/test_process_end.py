"""Commands end with their exit code, whatever their threads do meanwhile."""

from pathlib import Path

import pytest

from tests.processes import completed, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BUSY = ("--env-id", "tests.busy_environments:busy_cartpole")
SHORT = ("--algorithm", "impala", "--batch-size", 4, "--n-rollout-steps", 8, "--total-steps", 200)


def test_commands_end_well_although_a_thread_is_in_torch(tmp_path: Path):
    run = tmp_path / "run"
    for command in (
        ("train", *BUSY, *SHORT, "--actor-kind", "sequential", "--run-dir", run),
        ("evaluate", run, "--n-episodes", 1),
        ("record", "--policy", run, "--steps", 50, "--output", tmp_path / "recording"),
    ):
        completed(*command)


def test_a_learner_and_its_actor_end_well_although_threads_are_in_torch(tmp_path: Path):
    address = tmp_path / "address"
    serving = ("--address", "127.0.0.1:0", "--address-file", address, "--run-dir", tmp_path / "run")
    with (
        running("learner", "learner", *BUSY, *serving, *SHORT) as learner,
        running("actor", *BUSY, "--learner-address", f"file:{address}") as actor,
    ):
        for process in (learner, actor):
            output, _ = process.communicate(240)
            assert process.returncode == 0, output
