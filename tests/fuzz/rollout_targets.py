"""Decoders of rollouts: one message, a stream in frames, a file; and what is made of the statistics in them."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from gymnasium import spaces

from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.rollouts.codec import RolloutEncoder, rollout_to_proto
from rollcast.services.rollouts.recording import RolloutWriter, read_rollouts
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.rollouts.rollouts import NOT_BY_POLICY, Rollout
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces
from rollcast.services.streams.receiver import parse_request
from rollcast.services.wire.message_body import append_body
from rollcast.services.wire.seal import seal
from rollcast.v1 import recording_pb2, rollout_pb2
from tests.contract.golden_messages import SUBSTEP, rollout_with_events
from tests.fuzz.file_mutators import pieces_mutator
from tests.fuzz.message_targets import LOWERED_SPACES, SPACES_BYTES
from tests.fuzz.messages import join_pieces, split_pieces
from tests.fuzz.oracle import Target
from tests.fuzz.protobuf_mutator import message_mutator, stream_mutator
from tests.rollouts import random_rollout, without_digests

_T, _B = 2, 2
# Of a recurrent policy with a frame stack: S and K.
STATE_SIZE, FRAME_STACK = 2, 3
# Every kind of column in few bytes: short messages are mutated deeper, and more of them a second.
SMALL: EnvironmentSpaces = {
    "0": SubstepSpaces(
        observation=spaces.Dict(
            [
                ("a", spaces.Box(-1, 1, (2,), np.float32)),
                ("b", spaces.Tuple([spaces.Discrete(5, start=-2), spaces.MultiDiscrete([2, 3], start=[1, 0])])),
            ]
        ),
        action=spaces.MultiBinary(3),
    ),
    "1": SubstepSpaces(
        observation=spaces.Box(0, 255, (2, 2), np.uint8), action=spaces.Box(-1, 1, (), np.float64), n_agents=2
    ),
}
_Request = rollout_pb2.StreamRolloutsRequest


def rollout(folder: Path) -> Target:
    """A message that is a rollout: digest, body, header, values."""
    seeds = tuple(
        message
        for played in _rollouts()
        for message in (_sealed(_Request(rollout=rollout_to_proto(played))), *RolloutEncoder().encode(played))
    )
    unfinished = split_pieces(_framed(_rollouts()[:1], 40))[0]
    mutate = message_mutator(_Request, seeds)
    return Target(
        name="rollout",
        decode=lambda content: _assembler().add(*parse_request(content)),
        encode=lambda decoded: unfinished if decoded is None else _encoded(decoded),
        seeds=seeds,
        mutate=lambda content, rng: _resealed(mutate(content, rng), rng),
        bytes_per_byte=64,
    )


def rollout_stream(folder: Path) -> Target:
    """A stream of rollouts whose bytes follow in frames."""
    played = _rollouts()
    seeds = tuple(_framed(some, n_bytes) for some in (played[:1], played[1:], played) for n_bytes in (40, 1000))

    def decode(content: bytes) -> Sequence[Rollout]:
        assembler = _assembler()
        received = [assembler.add(*parse_request(piece)) for piece in split_pieces(content)]
        return [rollout for rollout in received if rollout is not None]

    def encode(rollouts: Sequence[Rollout]) -> bytes:
        encoder = RolloutEncoder()
        return join_pieces(message for rollout in rollouts for message in encoder.encode(rollout))

    def repair(messages: list[Any], rng: Random) -> None:
        sequence = offset = 0
        for message in messages:
            if message.WhichOneof("message") == "rollout":
                sequence, offset = message.rollout.sequence, len(message.body)
            elif message.WhichOneof("message") == "frame":
                message.frame.sequence, message.frame.offset = sequence, offset
                offset += len(message.body)

    return Target(
        name="rollout stream",
        decode=decode,
        encode=encode,
        seeds=seeds,
        mutate=stream_mutator(_Request, seeds, repair, serialize=_maybe_sealed),
        bytes_per_byte=64,
        max_length=1 << 14,
    )


def statistics(folder: Path) -> Target:
    """Episodes and events, and what the learner's aggregator makes of them."""
    seeds = (rollout_to_proto(rollout_with_events()).SerializeToString(),)

    def decode(content: bytes) -> Mapping[str, Any]:
        assembler = RolloutAssembler(RolloutShape({"0": SUBSTEP}, 2, 2))
        decoded = assembler.add(_Request(rollout=rollout_pb2.Rollout.FromString(content)))
        if decoded is None:
            return {}
        aggregator = EpochStatsAggregator()
        aggregator.add_all(decoded.episodes, decoded.events)
        aggregator.add_all(decoded.episodes, decoded.events)
        resumed = EpochStatsAggregator()
        resumed.load_state(aggregator.state())
        resumed.add_all(decoded.episodes, decoded.events)
        return {**aggregator.epoch_stats(), **resumed.epoch_stats()}

    return Target(
        name="statistics",
        decode=decode,
        seeds=seeds,
        mutate=message_mutator(rollout_pb2.Rollout, seeds),
        bytes_per_byte=1024,
    )


def recording(folder: Path) -> Target:
    """A file of rollouts."""
    seeds = []
    for key in SMALL:
        path = folder / f"recording-{key}"
        header = RecordingHeader(
            spaces=SMALL,
            n_rollout_steps=_T,
            n_envs=_B,
            env_id="e",
            state_size=STATE_SIZE,
            frame_stack=FRAME_STACK,
        )
        with RolloutWriter(path, header) as writer:
            for sequence in (1, 2):
                writer.append(small_rollout(key=key, sequence=sequence))
        # Nearly all that is changed in a file with digests is refused because of these.
        seeds += [path.read_bytes(), without_digests(path.read_bytes())]
    path = folder / "recording"

    def decode(content: bytes) -> Sequence[Rollout]:
        path.write_bytes(content)
        return list(read_rollouts(path))

    headers = message_mutator(recording_pb2.RecordingHeader, [split_pieces(seed)[0] for seed in seeds])
    rollouts = message_mutator(rollout_pb2.Rollout, [split_pieces(seed)[1] for seed in seeds])
    return Target(
        name="recording",
        decode=decode,
        seeds=tuple(seeds),
        mutate=pieces_mutator(lambda place: rollouts if place else headers),
        limit_bytes=SPACES_BYTES,
        bytes_per_byte=512,
        limits=LOWERED_SPACES,
        max_length=1 << 14,
    )


def small_rollout(*, key: str = "0", sequence: int = 1) -> Rollout:
    """Returns a rollout of `SMALL` with every column that there is."""
    return random_rollout(SMALL, _T, _B, key=key, sequence=sequence, state_size=STATE_SIZE, frame_stack=FRAME_STACK)


def _rollouts() -> Sequence[Rollout]:
    versions = np.array([[3, NOT_BY_POLICY], [4, 3]])
    return (dataclasses.replace(small_rollout(), policy_versions=versions), small_rollout(key="1", sequence=2))


_UNUSED = RolloutAssembler(RolloutShape(SMALL, _T, _B, STATE_SIZE, FRAME_STACK))


def _assembler() -> RolloutAssembler:
    """As good as a new one, at a tenth of what that costs: it has seen no header yet."""
    for agreed in _UNUSED._header_check._substeps.values():
        agreed._known.clear()
    return copy.copy(_UNUSED)


def _encoded(decoded: Rollout) -> bytes:
    (message,) = RolloutEncoder().encode(decoded)
    return message


def _framed(rollouts: Sequence[Rollout], n_bytes: int) -> bytes:
    return join_pieces(piece for rollout in rollouts for piece in _in_frames(rollout, n_bytes))


def _in_frames(played: Rollout, n_bytes: int) -> Iterator[bytes]:
    """As `RolloutEncoder` cuts it, in much smaller pieces."""
    (message,) = RolloutEncoder().encode(played)
    request, body = parse_request(message)
    request.ClearField("digest")
    for offset in range(0, len(body), n_bytes):
        if offset:
            request = _Request(frame=rollout_pb2.TensorFrame(sequence=played.sequence, offset=offset))
        request.body = bytes(body[offset : offset + n_bytes])
        yield _sealed(request)


def _sealed(request: Any) -> bytes:
    """A request as its writer would have sealed it."""
    head = _Request()
    head.CopyFrom(request)
    body = head.body
    head.ClearField("body")
    head.ClearField("digest")
    return append_body(seal(head.SerializeToString(), [memoryview(body)]), [memoryview(body)], len(body))


def _maybe_sealed(request: Any, rng: Random) -> bytes:
    return _sealed(request) if rng.random() < 0.9 else request.SerializeToString()


def _resealed(content: bytes, rng: Random) -> bytes:
    try:
        return _maybe_sealed(_Request.FromString(content), rng)
    except DecodeError:
        return content
