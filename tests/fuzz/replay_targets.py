"""Decoders of the replay service: what it tells of itself, its batches, and new priorities."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from rollcast.learner.replay.sampling.prioritized import as_priorities, check_priorities
from rollcast.services.replay import batch_assembler as replay_batch_assembler
from rollcast.services.replay.batch_assembler import BatchAssembler
from rollcast.services.replay.batch_codec import BatchEncoder
from rollcast.services.replay.codec import priorities_from_proto, replay_info_from_proto, replay_info_to_proto
from rollcast.services.replay.replay import ReplayBatch, ReplayInfo, ReplayWaiting
from rollcast.services.wire.tensors import tensor_to_proto
from rollcast.v1 import replay_pb2
from tests.fuzz.message_targets import LOWERED_SPACES, SPACES_BYTES
from tests.fuzz.messages import join_pieces, split_pieces
from tests.fuzz.oracle import SMALL_CHANGE_BYTES, Target
from tests.fuzz.protobuf_mutator import message_mutator, stream_mutator
from tests.fuzz.rollout_targets import SMALL
from tests.unit.services.replay.test_batch_codec import example_batch

_N_ENTRIES = 5
# The declared limit is 256 MiB: lowered to this, reaching it costs microseconds.
_MAX_BATCH_BYTES = 1 << 16


def replay_info(folder: Path) -> Target:
    """A replay buffer's status."""
    info = ReplayInfo(
        size=1, capacity=2, n_bytes=3, inserted=4, sampled=5, ignored_updates=6, min_size=7, difference=0.5,
        min_diff=-1.0, max_diff=1.0, n_rollout_steps=8, n_sample_steps=9, entry_bytes=10, spaces=SMALL,
        waiting=(ReplayWaiting(reason="for room", seconds=1.5, who="the trainer"),),
    )  # fmt: skip
    seeds = (replay_info_to_proto(info).SerializeToString(),)
    return Target(
        name="replay info",
        decode=lambda content: replay_info_from_proto(replay_pb2.ReplayInfo.FromString(content)),
        encode=lambda value: replay_info_to_proto(value).SerializeToString(deterministic=True),
        seeds=seeds,
        mutate=message_mutator(replay_pb2.ReplayInfo, seeds),
        limit_bytes=SPACES_BYTES,
        bytes_per_byte=512,
        limits=LOWERED_SPACES,
    )


def priorities(folder: Path) -> Target:
    """New priorities, as the buffer checks them."""
    seeds = tuple(
        replay_pb2.UpdatePrioritiesRequest(
            keys=tensor_to_proto(np.arange(3)), priorities=tensor_to_proto(np.array([0.5, 1, 2], dtype))
        ).SerializeToString()
        for dtype in (np.float32, np.float64)
    )

    def decode(content: bytes) -> None:
        keys, values = priorities_from_proto(replay_pb2.UpdatePrioritiesRequest.FromString(content))
        check_priorities(np.asarray(keys, np.int64), as_priorities(values))

    return Target(
        name="priorities",
        decode=decode,
        seeds=seeds,
        mutate=message_mutator(replay_pb2.UpdatePrioritiesRequest, seeds),
    )


def replay_batches(folder: Path) -> Target:
    """Batches, whole and in parts."""
    examples = (example_batch(), example_batch(1, n_finals=0), example_batch(2, log_prob=False))
    seeds = tuple(
        _in_parts(batch, cuts, deferred=deferred)
        for batch in examples
        for cuts in ([(0, 5)], [(0, 2), (2, 5)])
        for deferred in (False, True)
    )

    def decode(content: bytes) -> Sequence[ReplayBatch]:
        assembler = BatchAssembler(_N_ENTRIES)
        received = [assembler.add(piece) for piece in split_pieces(content)]
        return [batch for batch in received if batch is not None]

    def encode(batches: Sequence[ReplayBatch]) -> bytes:
        encoder = BatchEncoder(deferred=True)
        return join_pieces(part for batch in batches for part in encoder.encode(batch))

    def repair(parts: list[Any], rng: Random) -> None:
        """Bodies as long as the deferred tensors, mostly; parts counted."""
        for number, part in enumerate(parts):
            if rng.random() < 0.9:
                part.part, part.parts = number, len(parts)

    return Target(
        name="replay batches",
        decode=decode,
        encode=encode,
        seeds=seeds,
        mutate=stream_mutator(replay_pb2.SampleResponse, seeds, repair),
        limit_bytes=SMALL_CHANGE_BYTES + 2 * _MAX_BATCH_BYTES,
        bytes_per_byte=64,
        limits=((replay_batch_assembler, "MAX_BATCH_BYTES", _MAX_BATCH_BYTES),),
        max_length=1 << 14,
    )


def _in_parts(batch: ReplayBatch, cuts: Sequence[tuple[int, int]], *, deferred: bool) -> bytes:
    parts = []
    for number, (start, stop) in enumerate(cuts):
        (message,) = BatchEncoder(deferred=deferred).encode(batch.entries(start, stop))
        part = replay_pb2.SampleResponse.FromString(message)
        part.part, part.parts = number, len(cuts)
        parts.append(part.SerializeToString())
    return join_pieces(parts)
