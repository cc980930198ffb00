"""Reads and encodes the policy files of a run: weights as safetensors, everything else in the file's metadata."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.numpy

from rollcast.services.errors import ConfigurationError, InvalidInputError
from rollcast.services.policies.policies import PolicyName, PolicySpec, SavedPolicy
from rollcast.services.spaces.codec import environment_spaces_from_json, environment_spaces_to_json
from rollcast.services.spaces.spaces import EnvironmentSpaces

_METADATA_KEY: Final = "rollcast.policy.v1"
# safetensors writes at most 100 MB of metadata. Only a Box with millions of different bounds comes near this.
_MAX_SPACES_CHARACTERS: Final = 1 << 24


def saved_policy_path(run: Path, name: PolicyName) -> Path:
    """Returns the path of the last or the best policy in a run directory."""
    return run / f"policy_{name}.safetensors"


def encode_saved_policy(policy: SavedPolicy) -> bytes:
    """Returns the content of a policy file; equal policies give equal bytes."""
    described = {
        "spec": asdict(policy.spec),
        "policy_version": policy.policy_version,
        "env_steps": policy.env_steps,
        "mean_return": policy.mean_return,
    }
    spaces = None if policy.spaces is None else _encode_spaces(policy.spaces)
    if spaces is not None:
        described["spaces"] = spaces
    # one entry: safetensors writes several in a different order each time
    return safetensors.numpy.save(dict(policy.state), {_METADATA_KEY: json.dumps(described)})


def read_saved_policy(path: Path) -> SavedPolicy:
    """Reads a policy file.

    Args:
        path: The file, as `encode_saved_policy` made it.

    Raises:
        ConfigurationError: The file does not exist, or holds anything else.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        described = json.loads(metadata[_METADATA_KEY])
        spec = described["spec"]
        return SavedPolicy(
            spec=PolicySpec(**{**spec, "hidden_sizes": tuple(spec["hidden_sizes"])}),
            state=state,
            policy_version=int(described["policy_version"]),
            env_steps=int(described["env_steps"]),
            mean_return=described["mean_return"],
            spaces=_decode_spaces(described.get("spaces")),
        )
    except (
        OSError,
        safetensors.SafetensorError,
        ArithmeticError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise ConfigurationError(
            f"{path} is not a saved policy: {type(error).__name__}: {error}; expected a file that a run wrote. "
            "Choose the other policy of the run, or a checkpoint."
        ) from error


def read_run_policy(run: Path, name: PolicyName) -> SavedPolicy:
    """Reads the last or the best policy of a run directory.

    Raises:
        ConfigurationError: The run has no policy of that name, or the file cannot be read.
    """
    path = saved_policy_path(run, name)
    if not path.is_file():
        there = sorted(file.name for file in run.glob("policy_*.safetensors")) or "no policy"
        raise ConfigurationError(f"{path} does not exist; {run} holds {there}. Choose a policy that it holds.")
    return read_saved_policy(path)


def _encode_spaces(spaces: EnvironmentSpaces) -> list[dict[str, Any]] | None:
    """Returns None for spaces that the protocol has no room for: training without a server does not need any."""
    try:
        encoded = environment_spaces_to_json(spaces)
    except InvalidInputError:
        return None
    return encoded if len(json.dumps(encoded)) <= _MAX_SPACES_CHARACTERS else None


def _decode_spaces(spaces: object) -> EnvironmentSpaces | None:
    # files of version 0.1 hold a line of text for each space, which nothing can act with
    if spaces is None or isinstance(spaces, Mapping):
        return None
    if not isinstance(spaces, list):
        raise TypeError(f"its spaces are {spaces!r:.80}; expected a list")
    return environment_spaces_from_json(spaces)
