"""The policy of a file is served, and each newer one that a run writes there."""

import dataclasses
import logging
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rollcast.actor import TorchPolicy
from rollcast.services import ConfigurationError, PolicySpec, SavedPolicy, SubstepSpaces
from rollcast.services.policies.saved import encode_saved_policy
from rollcast.tools.policy_server.command import PolicyControl
from rollcast.tools.policy_server.followed import FollowedPolicy

SPACES = {"0": SubstepSpaces(observation=Box(-1, 1, (3,)), action=Discrete(2))}
SAVED = SavedPolicy(
    spec=PolicySpec(hidden_sizes=(4,)),
    state=TorchPolicy(SPACES, PolicySpec(hidden_sizes=(4,))).state_arrays(),
    policy_version=5,
    env_steps=640,
    mean_return=1.5,
    spaces=SPACES,
)


def preferring(action: int, version: int) -> bytes:
    """Returns a file of a version that takes one action, whatever it sees."""
    state = {name: np.zeros_like(array) for name, array in SAVED.state.items()}
    state["networks.0.layers.1.bias"] = np.eye(2, dtype=np.float32)[action]
    return encode_saved_policy(dataclasses.replace(SAVED, state=state, policy_version=version))


@pytest.fixture
def followed(tmp_path: Path):
    (tmp_path / "policy_best.safetensors").write_bytes(preferring(0, 5))
    with ExitStack() as stack:
        policy = FollowedPolicy(tmp_path, name="best", network="auto", seed=0)
        stack.callback(policy.publisher.end)
        yield policy


def replace(folder: Path, content: bytes) -> None:
    """Replaces the file as a run does: with another one, of another inode."""
    (folder / "new").write_bytes(content)
    (folder / "new").replace(folder / "policy_best.safetensors")


def acted(policy: FollowedPolicy) -> tuple[list[int], int]:
    action, version = policy.publisher.act({"": np.zeros((2, 3), np.float32)}, substep_key="0", deterministic=True)
    return action.tolist(), version


def test_a_newer_policy_of_the_run_is_served(followed: FollowedPolicy, tmp_path: Path):
    assert acted(followed) == ([0, 0], 5)
    followed.look()
    assert acted(followed) == ([0, 0], 5)
    replace(tmp_path, preferring(1, 9))
    followed.look()
    assert acted(followed) == ([1, 1], 9)
    assert followed.publisher.newest().version == followed.saved.policy_version == 9


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not a policy", "is not a saved policy"),
        (encode_saved_policy(dataclasses.replace(SAVED, spec=PolicySpec(hidden_sizes=(8,)))), "networks.0.layers"),
        (
            encode_saved_policy(dataclasses.replace(SAVED, spec=PolicySpec(hidden_sizes=(4,), activation="relu"))),
            "relu",
        ),
        (
            encode_saved_policy(
                dataclasses.replace(SAVED, state={**SAVED.state, "networks.0.layers.0.bias": np.float32([np.nan] * 4)})
            ),
            "nan",
        ),
        (
            encode_saved_policy(
                dataclasses.replace(
                    SAVED, spaces={"0": SubstepSpaces(observation=Box(-2, 2, (3,)), action=Discrete(2))}
                )
            ),
            "spaces differ at 0/observation",
        ),
    ],
)
def test_one_that_cannot_be_used_is_left_out_with_a_warning(
    content: bytes, reason: str, followed: FollowedPolicy, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    replace(tmp_path, content)
    with caplog.at_level(logging.WARNING):
        followed.look()
        followed.look()
    (record,) = caplog.records
    assert "is not served" in record.getMessage()
    assert reason in record.getMessage()
    assert "the server keeps version 5" in record.getMessage()
    assert acted(followed) == ([0, 0], 5)
    replace(tmp_path, preferring(1, 9))
    followed.look()
    assert acted(followed) == ([1, 1], 9)


def test_a_file_that_is_gone_for_a_while_changes_nothing(followed: FollowedPolicy, tmp_path: Path):
    (tmp_path / "policy_best.safetensors").unlink()
    followed.look()
    assert acted(followed) == ([0, 0], 5)


def test_a_run_without_a_policy_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"policy_best\.safetensors does not exist"):
        FollowedPolicy(tmp_path, name="best", network="auto", seed=0)


def test_status_and_metrics_say_how_long_an_action_takes(followed: FollowedPolicy):
    control = PolicyControl(followed, "runs/mine", follows=True)
    assert control.status().acts.calls == 0
    acted(followed)
    status = control.status()
    assert (status.policy_version, status.env_steps, status.mean_return) == (5, 640, 1.5)
    assert (status.acts.calls, status.acts.observations, status.acts.forward_passes) == (1, 2, 1)
    samples = {
        (sample.name, sample.labels.get("quantile")): sample.value
        for family in control.collect()
        for sample in family.samples
    }
    assert samples["rollcast_act_calls_total", None] == 1
    assert samples["rollcast_act_seconds", "0.5"] == status.acts.p50_s > 0
    assert samples["rollcast_act_seconds", "0.99"] == status.acts.p99_s
