"""Action masks through `record`, `train`, `evaluate` and `Act`.

The environment raises on an action that is not allowed, so that a run that ends well has ignored no mask. So does that
of the matrix, with which test_combinations.py trains every algorithm.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.status.status import Phase
from tests.processes import completed, ended, free_port, running, status_of, wait_until

pytestmark = pytest.mark.slow

ENV_ID = "tests.masked_environments:MaskedCorridor"
FEW = ("--n-actors", 1, "--envs-per-actor", 2)


def test_trains_with_mask_from_info_and_random_recording(tmp_path: Path):
    arguments = (
        *("--env-id", "rollcast.actor.environments.action_mask:make"),
        *("--env-kwargs", json.dumps({"env_id": ENV_ID, "in_info": True})),
    )
    file = tmp_path / "random.rollouts"
    completed("record", *arguments, "--rollouts", 40, "--n-rollout-steps", 16, "--output", file)
    completed(
        *("train", "--algorithm", "dqn", *arguments, "--initial-data", file, "--total-steps", 300),
        *("--replay.min-size", 200, "--replay.samples-per-insert", 8),
        *("--vectorization", "subprocess", *FEW, "--run-dir", tmp_path / "run"),
    )
    completed("evaluate", tmp_path / "run", "--n-episodes", 20)


def test_act_never_returns_forbidden_actions(tmp_path: Path):
    address = f"localhost:{free_port()}"
    arguments = ("--env-id", ENV_ID, "--stop-return", 1e9, *FEW, "--address", address, "--run-dir", tmp_path / "run")
    mask = np.random.default_rng(0).integers(0, 2, (500, 8)).astype(np.int8)
    mask[0] = 0  # a game that has ended, among those that go on
    mask[1:, 3] = 1
    with running("learner", "train", *arguments) as process, LearnerClient(address) as client:
        wait_until(lambda: status_of(client).phase is Phase.TRAINING, "training")
        for deterministic in (False, True):
            observation = {"action_mask": mask, "cell": np.arange(500) % 8}
            action, _ = client.act(observation, deterministic=deterministic)
            assert mask[np.arange(500), action][1:].all()
        client.stop()
        assert ended(process) == 0
