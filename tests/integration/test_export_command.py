"""`rollcast export`: a run's policy, played by onnxruntime as the policy itself would play."""

from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime
import pytest

from rollcast.actor import load_policy
from tests.processes import completed, refused

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run"
    completed(
        *("train", "--run-dir", path, "--total-steps", 600, "--stop-return", 1e9, "--n-rollout-steps", 16),
        *("--actor-kind", "sequential", "--recurrence", "lstm", "--frame-stack", 2, "--normalize-observations"),
    )
    return path


def test_the_file_plays_an_episode_as_the_policy_does(run: Path):
    told = completed("export", run, "--check", 1000).stdout
    file = run / "policy_best.onnx"
    assert f"{file}, {file.stat().st_size:,} bytes" in told
    assert "1,000 observations, largest difference" in told
    session, policy = onnxruntime.InferenceSession(file), load_policy(run)
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    state, ended = np.zeros((1, session.get_inputs()[1].shape[1]), np.float32), False
    while not ended:
        action, _, state = session.run(None, {"observation": observation[None], "state_in": state})
        assert action[0] == policy.act(observation, deterministic=True)
        observation, _, terminated, truncated, _ = env.step(action[0])
        ended = terminated or truncated
    env.close()


def test_a_file_elsewhere_with_the_names_of_ml_agents(run: Path, tmp_path: Path):
    copy = tmp_path / "robot.safetensors"
    copy.write_bytes((run / "policy_last.safetensors").read_bytes())
    completed("export", copy, "--names", "mlagents", "--check", 100)
    names = {taken.name for taken in onnxruntime.InferenceSession(tmp_path / "robot.onnx").get_outputs()}
    assert {"deterministic_discrete_actions", "recurrent_out"} <= names


def test_a_refused_policy_leaves_no_file(run: Path, tmp_path: Path):
    told = refused("export", run, "--names", "godot", "--output", tmp_path / "out.onnx")
    assert "Godot RL Agents cannot play a policy with a recurrent state or a frame stack" in told
    told = refused("export", run, "--substep", "pick", "--output", tmp_path / "out.onnx")
    assert "--substep: 'pick' is given; expected one of 0" in told
    assert list(tmp_path.iterdir()) == []
