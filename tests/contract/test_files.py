"""Files that earlier versions wrote: they are read for ever. Nothing writes `files/` anew."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from rollcast.services.policies.saved import read_saved_policy
from rollcast.services.rollouts.recording import read_rollouts
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.contract.golden_messages import rollout
from tests.rollouts import assert_same_rollout

FOLDER = Path(__file__).parent / "files"


def written(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(bytes.fromhex((FOLDER / f"{name}.hex").read_text()))
    return path


@pytest.mark.parametrize("name", ["policy", "policy_without_digest"])
def test_policy_is_read(name, tmp_path, caplog):
    policy = read_saved_policy(written(tmp_path, name))
    assert (policy.policy_version, policy.env_steps, policy.mean_return) == (12, 3456, 78.9)
    assert policy.spec.hidden_sizes == ()
    observation, action = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    assert policy.spaces == {"0": SubstepSpaces(observation=observation, action=action)}
    np.testing.assert_array_equal(policy.state["networks.0.layers.0.weight"], np.array([[0, 1], [2, 3]], np.float32))
    np.testing.assert_array_equal(policy.state["networks.0.layers.0.bias"], np.array([0.5, -0.5], np.float32))
    assert ("has no digest" in caplog.text) == (name == "policy_without_digest")


@pytest.mark.parametrize("name", ["recording", "recording_without_digests"])
def test_recording_is_read(name, tmp_path, caplog):
    read = list(read_rollouts(written(tmp_path, name)))
    assert len(read) == 1
    assert_same_rollout(read[0], rollout(2, 2))
    assert ("has no digests" in caplog.text) == (name == "recording_without_digests")
