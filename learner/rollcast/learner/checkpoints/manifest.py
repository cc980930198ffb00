"""Writes and checks the manifest of a checkpoint: its description, and the digest of every file."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import xxhash
from pydantic import BaseModel, ValidationError

from rollcast.services.errors import ConfigurationError, RollcastError

MANIFEST_FILE: Final = "manifest"

# The layout of files that this program writes and reads.
FORMAT: Final = 2

_MAGIC: Final = "rollcast-checkpoint"
_READ_BYTES: Final = 1 << 20


class CheckpointInfo(BaseModel, frozen=True):
    """The state of training in a checkpoint.

    Attributes:
        n_updates: The number of updates.
        env_steps: The number of received environment steps.
        policy_version: The newest published version.
        mean_return: Mean return of the last episodes; None if too few have ended.
        has_ended: True if training had reached its end.
        software_version: The version of rollcast that wrote the checkpoint.
    """

    n_updates: int
    env_steps: int
    policy_version: int
    mean_return: float | None
    has_ended: bool
    software_version: str


class _File(BaseModel, extra="forbid"):
    """The entry of a file in a manifest."""

    bytes: int
    xxh3_128: str


class _Manifest(CheckpointInfo, extra="forbid"):
    """The JSON of a manifest: the fields of `CheckpointInfo` and the files."""

    files: dict[str, _File]


def write_manifest(
    directory: Path,
    info: CheckpointInfo,
    *,
    previous: Path | None = None,
    digests: Mapping[Path, str] = MappingProxyType({}),
) -> None:
    """Writes the manifest of a directory whose other files are complete.

    The manifest is a line `rollcast-checkpoint FORMAT DIGEST`, then JSON; the digest is the xxh3-128 of the JSON.

    Args:
        directory: The checkpoint.
        info: Describes the checkpoint.
        previous: A checkpoint whose files some files link to, for their digests; None: none.
        digests: Known xxh3-128 digests of files in the directory.
    """
    known = {} if previous is None else _read(previous)[1]
    files = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = str(path.relative_to(directory))
        linked = previous is not None and name in known and (previous / name).samefile(path)
        n_bytes, digest = known[name] if linked else (path.stat().st_size, digests.get(path) or _digest(path))
        files[name] = {"bytes": n_bytes, "xxh3_128": digest}
    content = json.dumps({**info.model_dump(), "files": files}, indent=2) + "\n"
    head = f"{_MAGIC} {FORMAT} {xxhash.xxh3_128_hexdigest(content.encode())}\n"
    (directory / MANIFEST_FILE).write_text(head + content, encoding="utf-8")


def read_info(directory: Path) -> CheckpointInfo:
    """Reads only the manifest, without checking the other files.

    Raises:
        ConfigurationError: The manifest is damaged, or has another format.
    """
    return _read(directory)[0]


def verify(directory: Path) -> CheckpointInfo:
    """Reads the manifest and every file of a checkpoint, and compares the files with their digests.

    Raises:
        ConfigurationError: A file is missing, was added, or differs, or the format is unknown. The message says which.
    """
    info, files = _read(directory)
    there = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()} - {MANIFEST_FILE}
    if there != files.keys():
        raise damaged(directory, f"it has the files {sorted(there)}, and its manifest names {sorted(files)}")
    for name, (n_bytes, digest) in files.items():
        path = directory / name
        try:
            whole = path.stat().st_size == n_bytes and _digest(path) == digest
        except OSError as error:
            raise damaged(directory, f"{name} cannot be read: {error.strerror}") from error
        if not whole:
            raise damaged(directory, f"{name} has changed since it was written")
    return info


def _read(directory: Path) -> tuple[CheckpointInfo, dict[str, tuple[int, str]]]:
    """Reads the manifest; returns its description, and the size and digest of each file."""
    try:
        head, _, content = (directory / MANIFEST_FILE).read_bytes().partition(b"\n")
    except OSError as error:
        raise damaged(directory, f"{MANIFEST_FILE} cannot be read: {error.strerror}") from error
    magic, _, rest = head.decode("ascii", "replace").partition(" ")
    version, _, digest = rest.partition(" ")
    if magic != _MAGIC or xxhash.xxh3_128_hexdigest(content) != digest:
        raise damaged(directory, f"{MANIFEST_FILE} has changed since it was written")
    if version != str(FORMAT):
        raise ConfigurationError(
            f"the checkpoint {directory} has the format {version!r}; expected {FORMAT}; resume it with the version of "
            "rollcast that wrote it"
        )
    try:
        manifest = _Manifest.model_validate_json(content)
    except ValidationError as error:
        raise damaged(directory, f"{MANIFEST_FILE} has wrong fields: {error.errors()[0]['msg']}") from error
    files = {name: (file.bytes, file.xxh3_128) for name, file in manifest.files.items()}
    return CheckpointInfo(**manifest.model_dump(exclude={"files"})), files


@contextmanager
def read_as_vouched_for(directory: Path) -> Iterator[None]:
    """Turns any error of the body, which reads files of a checkpoint, into an error about a damaged checkpoint.

    A digest proves that a file is unchanged, not that this program wrote it.

    Args:
        directory: The checkpoint that the body reads.

    Raises:
        ConfigurationError: The body raised an exception other than `RollcastError`.
    """
    try:
        yield
    except RollcastError:
        raise
    except Exception as error:
        raise damaged(directory, f"its content cannot be read: {type(error).__name__}: {error}") from error


def damaged(directory: Path, problem: str) -> ConfigurationError:
    """Makes the error for a checkpoint that cannot be read.

    Args:
        directory: The checkpoint.
        problem: The problem of the checkpoint.
    """
    return ConfigurationError(
        f"the checkpoint {directory} is damaged: {problem}; expected the files of its manifest, unchanged; resume from "
        "another checkpoint"
    )


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()
