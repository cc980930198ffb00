"""The policies that actors are given, held against those that were cast."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import xxhash

from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.policies.policies import PolicyState
from rollcast.v1 import policy_pb2


class GivenVersion(NamedTuple):
    """A version as it arrived at an actor."""

    version: int
    digest: str
    encoding: PolicyEncoding


def digest_of(state: PolicyState) -> str:
    """Returns a digest of all names and numbers."""
    digest = xxhash.xxh3_128()
    for name in sorted(state):
        array = state[name]
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write_policies(path: Path) -> None:
    """From now on, lines of `version digest encoding` are appended to the file, one for each policy that arrives."""
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    add = PolicyAssembler.add

    def written(assembler: PolicyAssembler, chunk: policy_pb2.PolicyChunk) -> tuple[int, PolicyState] | None:
        policy = add(assembler, chunk)
        if policy is not None:
            version, state = policy
            os.write(opened, f"{version} {digest_of(state)} {PolicyEncoding(chunk.encoding).name}\n".encode())
        return policy

    PolicyAssembler.add = written  # type: ignore[method-assign]  # this process does nothing but act


def read_policies(path: Path) -> list[GivenVersion]:
    """Returns the policies that arrived."""
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [GivenVersion(int(version), digest, PolicyEncoding[encoding]) for version, digest, encoding in lines]


def find_wrong(actor_id: str, given: list[GivenVersion], cast: Mapping[int, Collection[str]]) -> list[str]:
    """Returns a line for each policy of an actor that is not the one that was cast.

    Args:
        cast: The digests of each version; a learner that has died may cast another policy under the same number.
    """
    return [
        f"{actor_id} was given a version {one.version} of the policy ({one.encoding.name}) that was never cast"
        for one in given
        if one.digest not in cast.get(one.version, ())
    ]
