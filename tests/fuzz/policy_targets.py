"""Decoders of policies: their chunks, what an actor loads, what a client asks a policy; policies in files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import safetensors.numpy
import xxhash
from google.protobuf.message import DecodeError
from gymnasium import spaces
from numpy.typing import NDArray

from rollcast.actor.policies.exploration import EPSILONS
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.observation_moments import NORMALIZATION
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.policies.policies import PolicySpec, PolicyState, SavedPolicy
from rollcast.services.policies.service import PolicyServicer
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation, SubstepSpaces, space_leaves
from rollcast.services.wire.tensors import tensor_to_proto
from rollcast.v1 import policy_pb2, tensor_pb2
from tests.fuzz.file_mutators import mutate_safetensors
from tests.fuzz.messages import join_pieces, split_pieces
from tests.fuzz.oracle import Target
from tests.fuzz.protobuf_mutator import message_mutator, stream_mutator
from tests.fuzz.rollout_targets import FRAME_STACK, SMALL, STATE_SIZE
from tests.policies import without_digest
from tests.rollouts import random_leaf

_SPACES: EnvironmentSpaces = {
    "0": SubstepSpaces(observation=spaces.Box(-1, 1, (4,), np.float32), action=spaces.Discrete(3))
}
# By what their files have: plain; the epsilons of actors; moments and the weights of a memory.
_SPECS: Mapping[str, PolicySpec] = {
    "plain": PolicySpec(hidden_sizes=(4,)),
    "epsilons": PolicySpec(head="q_values", hidden_sizes=(4,)),
    "moments": PolicySpec(
        hidden_sizes=(4,), normalize_observations=True, recurrence="gru", recurrent_size=2, frame_stack=2
    ),
}


def policy_chunks(folder: Path) -> Target:
    """The chunks of policies, one after the other."""
    seeds = tuple(_chunks(_file(spec), n_chunks) for spec in _SPECS.values() for n_chunks in (1, 3))
    mutate_chunks = stream_mutator(policy_pb2.PolicyChunk, seeds, _repair)

    def decode(content: bytes) -> Sequence[tuple[int, PolicyState]]:
        assembler = PolicyAssembler()
        received = [assembler.add(policy_pb2.PolicyChunk.FromString(piece)) for piece in split_pieces(content)]
        return [policy for policy in received if policy is not None]

    def encode(received: Sequence[tuple[int, PolicyState]]) -> bytes:
        return join_pieces(
            policy_pb2.GetPolicyResponse.FromString(message).chunk.SerializeToString()
            for version, state in received
            for message in encode_policy(version, state).chunks
        )

    def mutate(content: bytes, rng: Random) -> bytes:
        """The chunks, or the file that they hold."""
        if rng.random() < 0.5:
            return mutate_chunks(content, rng)
        return _chunks(mutate_safetensors(_content_of(content), rng), rng.choice((1, 2, 5)))

    return Target(
        name="policy chunks",
        decode=decode,
        encode=encode,
        seeds=seeds,
        mutate=mutate,
        bytes_per_byte=32,
        max_length=1 << 15,
    )


def policy_encodings(folder: Path) -> Target:
    """The chunks of a policy in every encoding, after a version that a delta may be the difference to."""
    base, newer = (encode_policy(version, TorchPolicy(_SPACES, _SPECS["plain"]).state_arrays()) for version in (6, 7))
    first = [policy_pb2.SubscribePolicyResponse.FromString(message).chunk for message in base.chunks]
    seeds = tuple(
        join_pieces(
            policy_pb2.SubscribePolicyResponse.FromString(message).chunk.SerializeToString() for message in messages
        )
        for messages in (newer.chunks, newer.bfloat16(), newer.delta(None), newer.delta(base.as_base()))
    )

    def decode(content: bytes) -> Sequence[tuple[int, PolicyState]]:
        assembler = PolicyAssembler(encodings=PolicyEncoding)
        for chunk in first:
            assembler.add(chunk)
        received = [assembler.add(policy_pb2.PolicyChunk.FromString(piece)) for piece in split_pieces(content)]
        return [policy for policy in received if policy is not None]

    def repair(chunks: list[Any], rng: Random) -> None:
        """Makes the digest true, so that what was changed is decoded."""
        _repair(chunks, rng)
        for chunk in chunks:
            if rng.random() < 0.3:
                chunk.encoding = rng.randrange(4)
            if rng.random() < 0.3:
                chunk.base_version = rng.choice((0, 6, 7))
            if rng.random() < 0.3:
                chunk.file_bytes = rng.choice((0, base.n_bytes, base.n_bytes + 4, 1 << 20, 1 << 40))

    return Target(
        name="policy encodings",
        decode=decode,
        seeds=seeds,
        mutate=stream_mutator(policy_pb2.PolicyChunk, seeds, repair),
        bytes_per_byte=64,
        max_length=1 << 13,
    )


def policy_weights(folder: Path) -> Target:
    """The arrays of a policy, and who loads them: numpy, and torch."""
    policies = {name: make_policy(_SPACES, spec, seed=0) for name, spec in _SPECS.items()}
    modules = {name: TorchPolicy(_SPACES, spec) for name, spec in _SPECS.items()}
    seeds = tuple(map(_file, _SPECS.values()))

    def decode(content: bytes) -> None:
        policy = PolicyAssembler().add(_chunk(content))
        assert policy is not None, "it is the only chunk"
        has_moments = any(name.startswith(NORMALIZATION) for name in policy[1])
        name = "epsilons" if EPSILONS in policy[1] else "moments" if has_moments else "plain"
        policies[name].load(*policy)
        modules[name].load_state_arrays(policy[1])

    return Target(
        name="policy weights",
        decode=decode,
        seeds=seeds,
        mutate=mutate_safetensors,
        bytes_per_byte=64,
        max_length=1 << 13,
    )


def act_request(folder: Path) -> Target:
    """A client's request to a policy."""
    rng = np.random.default_rng(0)
    seeds = tuple(
        policy_pb2.ActRequest(
            substep_key=key,
            observation=[
                tensor_pb2.NamedTensor(path=path, tensor=tensor_to_proto(random_leaf(leaf, (2,), rng)))
                for path, leaf in space_leaves(substep.observation).items()
            ],
            previous_observation=[
                tensor_pb2.NamedTensor(path=path, tensor=tensor_to_proto(random_leaf(leaf, (2, FRAME_STACK - 1), rng)))
                for path, leaf in space_leaves(substep.observation).items()
            ],
            state=tensor_to_proto(rng.standard_normal((2, STATE_SIZE), np.float32)),
        ).SerializeToString()
        for key, substep in SMALL.items()
    )
    servicer = PolicyServicer(_Source(), StreamGate(1))
    return Target(
        name="act request",
        decode=lambda content: servicer.act(policy_pb2.ActRequest.FromString(content), None),
        seeds=seeds,
        mutate=message_mutator(policy_pb2.ActRequest, seeds),
        bytes_per_byte=64,
    )


def saved_policy(folder: Path) -> Target:
    """A policy in the folder of a run."""
    run = RunDirectory(folder)
    seeds = []
    for spec in _SPECS.values():
        state = TorchPolicy(_SPACES, spec).state_arrays()
        policy = SavedPolicy(spec=spec, state=state, policy_version=1, env_steps=2, mean_return=3.0)
        run.write_policy("last", policy)
        written = run.policy_path("last").read_bytes()
        # Nearly all that is changed in a file with a digest is refused because of that.
        seeds += [written, without_digest(written)]

    def decode(content: bytes) -> SavedPolicy:
        run.policy_path("last").write_bytes(content)
        return run.read_policy("last")

    def encode(policy: SavedPolicy) -> bytes:
        run.write_policy("best", policy)
        return run.policy_path("best").read_bytes()

    return Target(
        name="saved policy",
        decode=decode,
        encode=encode,
        seeds=tuple(seeds),
        mutate=mutate_safetensors,
        bytes_per_byte=64,
        max_length=1 << 13,
    )


class _Source:
    """A learner whose policy acts with zeros."""

    spaces = SMALL
    state_size = STATE_SIZE
    frame_stack = FRAME_STACK

    def act(
        self,
        observation: Observation,
        *,
        substep_key: str,
        deterministic: bool,
        state: NDArray[np.float32] | None = None,
        previous: Observation | None = None,
    ) -> tuple[NDArray[Any], int]:
        n_rows = len(next(iter(observation.values())))
        return np.zeros((n_rows, 2), np.int64), 1


def _file(spec: PolicySpec) -> bytes:
    return safetensors.numpy.save(dict(TorchPolicy(_SPACES, spec).state_arrays()))


def _chunk(file: bytes) -> policy_pb2.PolicyChunk:
    (chunk,) = _cut(file, 1)
    return chunk


def _cut(file: bytes, n_chunks: int) -> list[policy_pb2.PolicyChunk]:
    """Returns what `encode_policy` makes of a file, in pieces of any size."""
    n_bytes = max(-(-len(file) // n_chunks), 1)
    payloads = [file[start : start + n_bytes] for start in range(0, max(len(file), 1), n_bytes)]
    digest = xxhash.xxh3_128_digest(file)
    return [
        policy_pb2.PolicyChunk(
            version=7, index=i, count=len(payloads), total_bytes=len(file), digest=digest, payload=payload
        )
        for i, payload in enumerate(payloads)
    ]


def _chunks(file: bytes, n_chunks: int) -> bytes:
    return join_pieces(chunk.SerializeToString() for chunk in _cut(file, n_chunks))


def _content_of(content: bytes) -> bytes:
    """The payloads of chunks that parse."""
    payloads = []
    for piece in split_pieces(content):
        try:
            payloads.append(policy_pb2.PolicyChunk.FromString(piece).payload)
        except DecodeError:
            continue
    return b"".join(payloads)


def _repair(chunks: list[Any], rng: Random) -> None:
    """Makes what they say of themselves true again."""
    file = b"".join(chunk.payload for chunk in chunks)
    for index, chunk in enumerate(chunks):
        chunk.digest, chunk.total_bytes = xxhash.xxh3_128_digest(file), len(file)
        if rng.random() < 0.9:
            chunk.index, chunk.count, chunk.version = index, len(chunks), chunks[0].version
