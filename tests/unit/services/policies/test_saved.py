"""Policy files: what is written comes back, and anything else is refused by name."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

from rollcast.services import ConfigurationError, PolicySpec, SavedPolicy, SubstepSpaces
from rollcast.services.policies.saved import encode_saved_policy, read_run_policy, read_saved_policy
from tests.policies import without_digest

SPACES = {
    "pick": SubstepSpaces(
        observation=Dict({"camera": Box(0, 255, (36, 36, 3), np.uint8), "arm": Box(-np.inf, np.inf, (3,))}),
        action=Box(np.array([-1.0, -2.0], np.float32), np.array([1.0, np.inf], np.float32)),
    ),
    "place": SubstepSpaces(observation=Tuple([Discrete(3, start=1), MultiBinary(2)]), action=Discrete(4), n_agents=2),
}


def saved_policy(**values: object) -> SavedPolicy:
    given = {
        "spec": PolicySpec(hidden_sizes=(32, 16), activation="relu"),
        "state": {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7)},
        "policy_version": 12,
        "env_steps": 3456,
        "mean_return": 78.9,
        "spaces": SPACES,
    }
    return SavedPolicy(**{**given, **values})


def write(path: Path, policy: SavedPolicy) -> Path:
    path.write_bytes(encode_saved_policy(policy))
    return path


def rewritten(path: Path, **described: object) -> Path:
    """Writes a policy file with other metadata."""
    metadata = json.dumps(
        {"spec": {"hidden_sizes": []}, "policy_version": 1, "env_steps": 2, "mean_return": None} | described
    )
    path.write_bytes(safetensors.numpy.save({}, {"rollcast.policy.v1": metadata}))
    return path


@pytest.mark.parametrize("mean_return", [78.9, -0.1, None])
def test_policy_comes_back_as_it_was_written(tmp_path: Path, mean_return: float | None):
    policy = saved_policy(mean_return=mean_return)
    read = read_saved_policy(write(tmp_path / "policy.safetensors", policy))
    assert (read.spec, read.policy_version, read.env_steps) == (policy.spec, 12, 3456)
    assert read.mean_return == mean_return
    assert read.spaces == SPACES
    assert list(read.spaces) == list(SPACES)
    assert read.state.keys() == policy.state.keys()
    for name, array in policy.state.items():
        np.testing.assert_array_equal(read.state[name], array, strict=True)


def test_equal_policies_give_equal_bytes():
    assert encode_saved_policy(saved_policy()) == encode_saved_policy(saved_policy())


@pytest.mark.slow
def test_spaces_without_room_in_the_file_are_left_out(tmp_path: Path):
    bounds = np.random.default_rng(0).uniform(0, 1, 2_000_000)
    huge = SubstepSpaces(observation=Box(-bounds, bounds, dtype=np.float64), action=Discrete(2))
    no_dtype_on_the_wire = SubstepSpaces(observation=Box(-1, 1, (2,), np.longdouble), action=Discrete(2))
    for spaces in (huge, no_dtype_on_the_wire):
        path = write(tmp_path / "policy.safetensors", saved_policy(spaces={"0": spaces}))
        assert read_saved_policy(path).spaces is None


def test_file_of_version_0_1_has_no_spaces(tmp_path: Path):
    path = rewritten(tmp_path / "policy.safetensors", spaces={"0/observation": "Box(...)", "0/action": "Discrete(2)"})
    assert read_saved_policy(path).spaces is None


@pytest.mark.parametrize(
    ("spaces", "problem"),
    [
        ("Box", "TypeError: its spaces are 'Box'; expected a list"),
        ([3], "InvalidSpaceError: a substep is 3; expected an object"),
        ([{"kind": 1}], r"InvalidSpaceError: a substep cannot be read: .* no field named \"kind\""),
        ([], "InvalidSpaceError: "),
        ([{"key": "0", "action": {"discrete": {"n": "2"}}}], "InvalidSpaceError: 0/observation has no known kind"),
    ],
)
def test_rejects_file_with_damaged_spaces(tmp_path: Path, spaces: object, problem: str):
    with pytest.raises(ConfigurationError, match=f"is not a saved policy: {problem}"):
        read_saved_policy(rewritten(tmp_path / "policy.safetensors", spaces=spaces))


def test_rejects_file_that_is_cut_or_of_somebody_else(tmp_path: Path):
    path = write(tmp_path / "policy.safetensors", saved_policy())
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ConfigurationError, match="is not a saved policy: ValueError: it is damaged: the digest of its"):
        read_saved_policy(path)
    safetensors.numpy.save_file({"weight": np.zeros(2)}, path)
    with pytest.raises(ConfigurationError, match="is not a saved policy: KeyError"):
        read_saved_policy(path)


def test_rejects_every_damaged_copy(tmp_path: Path):
    path = write(tmp_path / "policy.safetensors", saved_policy())
    content, rng = path.read_bytes(), random.Random(0)
    for _ in range(600):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        path.write_bytes(damaged)
        with pytest.raises(ConfigurationError, match=r"policy.safetensors is not a saved policy: .* Copy it again"):
            read_saved_policy(path)


def test_file_without_a_digest_is_read_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = write(tmp_path / "new.safetensors", saved_policy())
    read_saved_policy(path)
    assert not caplog.records
    (tmp_path / "old.safetensors").write_bytes(without_digest(path.read_bytes()))
    policy = read_saved_policy(tmp_path / "old.safetensors")
    assert (policy.policy_version, policy.spaces) == (12, SPACES)
    assert "old.safetensors has no digest" in caplog.text


def test_file_whose_digest_has_lost_its_name_is_not_taken_for_an_old_one(tmp_path: Path):
    path = write(tmp_path / "policy.safetensors", saved_policy())
    path.write_bytes(path.read_bytes().replace(b"xxh3_128", b"xxh3_129"))
    with pytest.raises(ConfigurationError, match=r"damaged: it has \['xxh3_129'\], and no 'xxh3_128'"):
        read_saved_policy(path)


def test_names_the_policies_that_a_run_does_have(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"policy_best.safetensors does not exist; .* has no policy"):
        read_run_policy(tmp_path, "best")
    write(tmp_path / "policy_last.safetensors", saved_policy())
    with pytest.raises(ConfigurationError, match=r"has \['policy_last.safetensors'\]"):
        read_run_policy(tmp_path, "best")
    assert read_run_policy(tmp_path, "last").policy_version == 12
