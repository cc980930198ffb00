"""The progress of training reaches environments, and evaluations play the whole task."""

import json
from pathlib import Path

import pytest

from tests.processes import completed, ended, free_port, running, wait_until

pytestmark = pytest.mark.slow

# The reward of each of the five steps of an episode is the progress.
TRAINING = (
    *("--env-id", "tests.environments:ProgressEnv", "--hidden-sizes", "[8]", "--n-rollout-steps", 10),
    *("--envs-per-actor", 2, "--batch-size", 4, "--ppo.n-epochs", 1, "--stop-return", 1e9, "--log-interval-s", 0.1),
)


def records_of(run: Path) -> list[dict[str, float]]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_returns_follow_the_progress_and_those_of_evaluations_do_not(tmp_path: Path):
    """Each environment is a process; every kind of actors passes tests/distributed_actors_suite.py."""
    run = tmp_path / "run"
    options = ("--n-actors", 1, "--vectorization", "subprocess", "--total-steps", 2000)
    completed("train", *TRAINING, *options, "--eval-interval-steps", 500, "--eval-episodes", 2, "--run-dir", run)
    records = records_of(run)
    evaluations = [record["eval/mean_return"] for record in records if "eval/mean_return" in record]
    assert evaluations
    assert set(evaluations) == {5.0}
    returns = [record["train/mean_return"] for record in records if record.get("train/mean_return", -1.0) >= 0.0]
    assert 0.0 < returns[-1] < 5.0, "every environment is told, and it is never the whole task"


def test_progress_passes_through_a_relay(tmp_path: Path):
    ports = free_port(), free_port()
    own, relayed = (f"127.0.0.1:{port}" for port in ports)
    run = tmp_path / "run"
    relay = ("learner", "relay", "--address", relayed, "--learner-address", own, "--relay-id", "near")
    actor = ("actor", "--learner-address", relayed, "--env-id", "tests.environments:ProgressEnv")
    learner = ("learner", "learner", "--address", own, *TRAINING, "--total-steps", 2000, "--run-dir", run)
    with running(*relay), running(*actor) as acting, running(*learner) as training:
        assert ended(training) == 0, training.stdout.read()
        assert ended(acting) == 0, acting.stdout.read()
    wait_until(lambda: records_of(run), "records")
    assert 0.0 < records_of(run)[-1]["train/mean_return"] < 5.0
