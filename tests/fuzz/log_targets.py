"""Decoders of the write-ahead log: an entry, a segment as it may be damaged, and a log whose digests are all right."""

import json
import logging
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import xxhash

from rollcast.learner.checkpoints.manifest import read_as_vouched_for
from rollcast.learner.durable.coverage import Coverage, OpenRollouts
from rollcast.learner.durable.reading import Flaw, SegmentReader
from rollcast.learner.durable.records import LogEntry, Payload, RecordHead, encode_record, encode_tail, inverted
from rollcast.learner.durable.recovery import RecoveredRollouts, take_inventory
from rollcast.learner.durable.segments import FORMAT, SegmentName, encode_segment_head
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.recording_codec import MAX_HEADER_BYTES, RecordingHeader, encode_recording_header
from rollcast.v1 import recording_pb2, rollout_pb2
from tests.fuzz.byte_mutator import mutate_bytes
from tests.fuzz.file_mutators import mutate_json, pieces_mutator
from tests.fuzz.message_targets import LOWERED_SPACES, SPACES_BYTES
from tests.fuzz.messages import join_pieces, split_pieces
from tests.fuzz.oracle import Target
from tests.fuzz.protobuf_mutator import message_mutator
from tests.fuzz.rollout_targets import FRAME_STACK, SMALL, STATE_SIZE, small_rollout
from tests.unit.learner.durable.logs import entry_of

_T, _B = 2, 2
_HEADER = RecordingHeader(spaces=SMALL, n_rollout_steps=_T, n_envs=_B, state_size=STATE_SIZE, frame_stack=FRAME_STACK)
_NAMES = tuple(SegmentName(number, bytes(range(number, number + 16))) for number in (1, 2))
# The bytes that are read at a time where a head may be, and where something is looked for.
_READ_BYTES = MAX_HEADER_BYTES + (2 << 20)
_COVERED = Coverage(position=3, open_runs=((1, 1),), open_spans={1: ((0, 1),)})


def log_entry(folder: Path) -> Target:
    """Returns the log's entry of a rollout."""
    (entry, _, _), *_ = _records()
    return Target(
        name="log entry", decode=LogEntry.decode, encode=LogEntry.encode, seeds=(entry,), mutate=mutate_json,
        bytes_per_byte=64,
    )  # fmt: skip


def log_segment(folder: Path) -> Target:
    """One segment: cut, damaged, and with heads and tails where none should be."""
    name = _NAMES[0]
    pieces = [encode_segment_head(_HEADER), *(_encoded(name, record) for record in _records())]
    seed = b"".join(pieces)
    inserted = (*pieces, name.marker, inverted(name.marker), encode_tail(name.marker, len(pieces[1])), bytes(99))

    def decode(content: bytes) -> None:
        name.path(folder).write_bytes(content)
        for verify in (False, True):
            with SegmentReader(folder, name) as reader:
                _check_places(list(reader.scan(verify=verify)), len(content))
        _recovered(folder, Coverage())

    def mutate(content: bytes, rng: Random) -> bytes:
        if rng.random() < 0.6:
            return mutate_bytes(content, rng)
        start = rng.randrange(len(content) + 1)
        stop = rng.choice((start, len(content), start + rng.randrange(200)))
        return content[:start] + rng.choice(inserted) * rng.choice((0, 1, 1, 3, 40)) + content[stop:]

    return Target(
        name="log segment",
        decode=decode,
        seeds=(seed,),
        mutate=mutate,
        limit_bytes=SPACES_BYTES + _READ_BYTES,
        bytes_per_byte=512,
        limits=LOWERED_SPACES,
        max_length=1 << 14,
    )


def log_recovery(folder: Path) -> Target:
    """Two segments and what a checkpoint has of them: whatever is in them, their digests and sizes are right."""
    header, records = encode_recording_header(_HEADER), _records()
    seeds = tuple(
        join_pieces(
            [json.dumps(coverage.to_json()).encode(), header, *(piece for record in records for piece in record)]
        )
        for coverage in (Coverage(), _COVERED)
    )

    def decode(content: bytes) -> Sequence[RolloutSlice]:
        pieces = [*split_pieces(content), b"", b""]
        with read_as_vouched_for(folder):
            coverage = Coverage.from_json(json.loads(pieces[0]))
        triples = list(zip(*(pieces[first::3] for first in (2, 3, 4)), strict=False))
        for name, its_records in zip(_NAMES, (triples[:2], triples[2:]), strict=True):
            encoded = (_encoded(name, record) for record in its_records)
            name.path(folder).write_bytes(_segment_head(pieces[1]) + b"".join(encoded))
        return _recovered(folder, coverage)

    headers = message_mutator(recording_pb2.RecordingHeader, [header])
    kinds = (mutate_json, message_mutator(rollout_pb2.Rollout, [head for _, head, _ in records]), mutate_bytes)
    first = (mutate_json, headers)
    return Target(
        name="log recovery",
        decode=decode,
        seeds=seeds,
        mutate=pieces_mutator(lambda place: first[place] if place < 2 else kinds[(place - 2) % 3]),
        limit_bytes=SPACES_BYTES + _READ_BYTES,
        bytes_per_byte=512,
        limits=LOWERED_SPACES,
        max_length=1 << 14,
    )


def _records() -> Sequence[tuple[bytes, bytes, bytes]]:
    """Of each rollout: what the log says of it, its header, and the bytes of its tensors."""
    rollouts = [small_rollout(key=key, sequence=n) for n, key in enumerate("0101", 1)]
    payloads = [Payload.of(*RolloutEncoder().head_and_arrays(rollout)) for rollout in rollouts]
    entries = [replace(entry_of(rollout)(number), n_envs=_B).encode() for number, rollout in enumerate(rollouts)]
    return [
        (entry, bytes(its.pieces[0]), b"".join(its.pieces[1:])) for entry, its in zip(entries, payloads, strict=True)
    ]


def _encoded(name: SegmentName, record: tuple[bytes, bytes, bytes]) -> bytes:
    entry, head, body = record
    return b"".join(encode_record(name.marker, entry, Payload.of(head, [np.frombuffer(body, np.uint8)])))


def _segment_head(header: bytes) -> bytes:
    """As `encode_segment_head` makes it of a header that is one."""
    sizes = struct.pack("<II", FORMAT, len(header))
    magic = encode_segment_head(_HEADER)[:16]
    return magic + sizes + xxhash.xxh3_64_intdigest(sizes + header).to_bytes(8, "little") + header


def _recovered(folder: Path, coverage: Coverage) -> Sequence[RolloutSlice]:
    """Returns what is handed out, as training has it; messages about damage go nowhere."""
    with _silent():
        inventory = take_inventory(folder, _HEADER, coverage)
        inventory.actors({})
        open_rollouts = OpenRollouts(inventory.next_number)
        rollouts = RecoveredRollouts(folder, _HEADER, inventory.found, open_rollouts)
        pieces = []
        while (piece := rollouts.take(1)) is not None:
            assert piece.to_rollout().reward.shape[1] == 1, "it has not the trajectories that its name says"
            open_rollouts.cover(piece.name)
            pieces.append(piece)
        Coverage.from_json(json.loads(json.dumps(open_rollouts.coverage().to_json())))
        return pieces


def _check_places(found: Sequence[RecordHead | Flaw], n_bytes: int) -> None:
    """Checks that each finding follows the one before it, and is in the file."""
    position = 0
    for each in found:
        stop = each.stop if isinstance(each, Flaw) else each.tail_start
        assert position <= each.start <= stop <= n_bytes, f"{each} after {position}"
        position = stop


@contextmanager
def _silent() -> Iterator[None]:
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
