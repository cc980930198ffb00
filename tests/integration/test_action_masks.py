"""Action masks through the whole system: actors as processes, the wire, the replay buffer, `Act`, `evaluate`, `record`.

The environment raises on an action that is not allowed, so that a run that ends well has ignored no mask.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.status.status import Phase
from tests.processes import free_port, rollcast, running, wait_until

pytestmark = pytest.mark.slow

ENV_ID = "tests.masked_environments:MaskedCorridor"


def test_impala_learns_the_right_one_of_the_allowed_actions(tmp_path: Path):
    done = rollcast(
        *("train", "--env-id", ENV_ID, "--hidden-sizes", 32, "--impala.reward-scale", 1, "--stop-return", 0.9),
        *("--impala.learning-rate", 5e-3, "--envs-per-actor", 8, "--batch-size", 16, "--total-steps", 1_000_000),
        *("--run-dir", tmp_path / "run", "--summary-json", tmp_path / "summary.json"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["solved"] is True, done.stdout
    figures = tmp_path / "evaluation.json"
    played = rollcast("evaluate", tmp_path / "run", "--n-episodes", 20, "--summary-json", figures)
    assert played.returncode == 0, played.stderr
    assert json.loads(figures.read_text())["mean"] > 0.9


# The policies that they learn are tested in tests/unit/learner/algorithms/test_masked_learning.py.
@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_off_policy_algorithms_never_choose_forbidden_actions(algorithm: str, tmp_path: Path):
    done = rollcast(
        *("train", "--algorithm", algorithm, "--env-id", ENV_ID, "--hidden-sizes", 32, "--total-steps", 1500),
        *("--replay.min-size", 500, "--run-dir", tmp_path / "run", "--summary-json", tmp_path / "summary.json"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["updates"] > 100
    played = rollcast("evaluate", tmp_path / "run", "--n-episodes", 20)
    assert played.returncode == 0, played.stderr


def test_trains_with_mask_from_info_and_random_recording(tmp_path: Path):
    arguments = (
        *("--env-id", "rollcast.actor.environments.action_mask:make"),
        *("--env-kwargs", json.dumps({"env_id": ENV_ID, "in_info": True})),
    )
    file = tmp_path / "random.rollouts"
    recorded = rollcast("record", *arguments, "--rollouts", 40, "--n-rollout-steps", 16, "--output", file)
    assert recorded.returncode == 0, recorded.stderr
    done = rollcast(
        *("train", "--algorithm", "dqn", *arguments, "--initial-data", file, "--total-steps", 1000),
        *("--vectorization", "subprocess", "--run-dir", tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr


def test_act_never_returns_forbidden_actions(tmp_path: Path):
    address = f"localhost:{free_port()}"
    arguments = ("--env-id", ENV_ID, "--stop-return", 1e9, "--address", address, "--run-dir", tmp_path / "run")
    mask = np.random.default_rng(0).integers(0, 2, (500, 8)).astype(np.int8)
    mask[0] = 0  # a game that has ended, among those that go on
    mask[1:, 3] = 1
    with running("learner", "train", *arguments) as process, LearnerClient(address) as client:
        wait_until(lambda: _is_training(client), "training", 40)
        for deterministic in (False, True):
            observation = {"action_mask": mask, "cell": np.arange(500) % 8}
            action, _ = client.act(observation, deterministic=deterministic)
            assert mask[np.arange(500), action][1:].all()
        client.stop()
        assert process.wait(60) == 0


def _is_training(client: LearnerClient) -> bool:
    try:
        return client.status().phase is Phase.TRAINING
    except RollcastError:
        return False
