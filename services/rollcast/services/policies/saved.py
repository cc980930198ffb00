"""Reads and encodes the policy files of a run: weights as safetensors, other values in the file's metadata.

The metadata has one JSON entry. Its field `xxh3_128` is the digest of the whole file without the 32 digits of the
digest itself.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.numpy
import xxhash

from rollcast.services.errors import ConfigurationError, InvalidInputError
from rollcast.services.limits.limits import MAX_POLICY_BYTES
from rollcast.services.policies.policies import PolicyName, PolicySpec, SavedPolicy, saved_policy_path
from rollcast.services.process.named_files import open_regular_file
from rollcast.services.spaces.codec import environment_spaces_from_json, environment_spaces_to_json
from rollcast.services.spaces.spaces import EnvironmentSpaces

logger = logging.getLogger(__name__)

_METADATA_KEY: Final = "rollcast.policy.v1"
_DIGEST_KEY: Final = "xxh3_128"
# The placeholder for the digest.
_NO_DIGEST: Final = "0" * 32
# The keys in files without a digest. Any other key is a sign of damage.
_OLD_KEYS: Final = frozenset({"spec", "policy_version", "env_steps", "mean_return", "spaces"})
# safetensors' own limit.
_MAX_HEADER_BYTES: Final = 100_000_000
# safetensors writes at most 100 MB of metadata. Only a Box with millions of different bounds comes close to this limit.
_MAX_SPACES_CHARACTERS: Final = 1 << 24


def encode_saved_policy(policy: SavedPolicy) -> bytes:
    """Returns the contents of a policy file. Equal policies give equal bytes."""
    described = {
        _DIGEST_KEY: _NO_DIGEST,  # first, so that no equal text precedes it
        "spec": asdict(policy.spec),
        "policy_version": policy.policy_version,
        "env_steps": policy.env_steps,
        "mean_return": policy.mean_return,
    }
    spaces = None if policy.spaces is None else _encode_spaces(policy.spaces)
    if spaces is not None:
        described["spaces"] = spaces
    # one entry, because safetensors writes several entries in a different order each time
    content = safetensors.numpy.save(dict(policy.state), {_METADATA_KEY: json.dumps(described)})
    before, after = _around(content, _NO_DIGEST)
    return b"".join((before, _digest(before, after).encode(), after))


def read_saved_policy(path: Path) -> SavedPolicy:
    """Reads a policy file. Logs a warning if the file has no digest, because an older version wrote it.

    Args:
        path: The file, with contents from `encode_saved_policy`.

    Raises:
        ConfigurationError: The file does not exist, is damaged, or is not a policy.
    """
    try:
        with open_regular_file(path) as file:
            n_bytes = os.fstat(file.fileno()).st_size  # `read` allocates as much as it may read
            start = file.read(8)
            # So the function reads no more than this from another kind of file.
            header = file.read(min(int.from_bytes(start, "little"), _MAX_HEADER_BYTES, n_bytes))
            described = json.loads(json.loads(header)["__metadata__"][_METADATA_KEY])
            content = b"".join((start, header, file.read(min(2 * MAX_POLICY_BYTES, n_bytes))))
        spec = described["spec"]
        _check_digest(described, content, path)
        return SavedPolicy(
            spec=PolicySpec(**{**spec, "hidden_sizes": tuple(spec["hidden_sizes"])}),
            state=safetensors.numpy.load(content),
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
            f"{path} is not a saved policy: {type(error).__name__}: {error}; expected a complete policy file of a run. "
            "Copy it again, or choose the other policy of the run, or a checkpoint."
        ) from error


def read_run_policy(run: Path, name: PolicyName) -> SavedPolicy:
    """Reads the last or the best policy of a run directory.

    Raises:
        ConfigurationError: The run has no such policy, or the file cannot be read.
    """
    path = saved_policy_path(run, name)
    if not path.is_file():
        there = sorted(file.name for file in run.glob("policy_*.safetensors")) or "no policy"
        raise ConfigurationError(f"{path} does not exist; {run} has {there}. Choose an existing policy.")
    return read_saved_policy(path)


def _encode_spaces(spaces: EnvironmentSpaces) -> list[dict[str, Any]] | None:
    """Encodes spaces; returns None if they exceed the protocol's limits, as training without a server allows."""
    try:
        encoded = environment_spaces_to_json(spaces)
    except InvalidInputError:
        return None
    return encoded if len(json.dumps(encoded)) <= _MAX_SPACES_CHARACTERS else None


def _decode_spaces(spaces: object) -> EnvironmentSpaces | None:
    # files of version 0.1 contain only a description of each space as text
    if spaces is None or isinstance(spaces, Mapping):
        return None
    if not isinstance(spaces, list):
        raise TypeError(f"its spaces are {spaces!r:.80}; expected a list")
    return environment_spaces_from_json(spaces)


def _check_digest(described: Mapping[str, Any], content: bytes, path: Path) -> None:
    """Compares a file with its digest.

    Args:
        described: The file's metadata.
        content: The whole file.
        path: The file's path, for messages.

    Raises:
        ValueError: The file is damaged.
    """
    expected = described.get(_DIGEST_KEY)
    if expected is None:
        if unknown := described.keys() - _OLD_KEYS:
            raise ValueError(f"it is damaged: it has {sorted(unknown)[:8]}, and no {_DIGEST_KEY!r}; expected a digest")
        logger.warning(
            "%s has no digest: an earlier version of rollcast wrote it, so damage to its weights cannot be detected",
            path,
        )
        return
    found = _digest(*_around(content, str(expected)))
    if found != expected:
        raise ValueError(
            f"it is damaged: the digest of its {len(content)} bytes is {found}; expected {str(expected)[:32]} from its "
            "metadata"
        )


def _around(content: bytes, digest: str) -> tuple[memoryview, memoryview]:
    """Returns the parts of a file before and after the digest."""
    start = content.find(digest.encode())
    if start < 0:
        raise ValueError("it is damaged: its digest is malformed; expected 32 hexadecimal digits")
    view = memoryview(content)
    return view[:start], view[start + len(digest) :]


def _digest(before: memoryview, after: memoryview) -> str:
    digest = xxhash.xxh3_128(before)
    digest.update(after)
    return digest.hexdigest()
