"""Batches of a replay buffer, and messages made of them."""

import dataclasses

import numpy as np

from rollcast.services.replay.batch_assembler import BatchAssembler
from rollcast.services.replay.batch_codec import BatchEncoder
from rollcast.services.replay.replay import ReplayBatch, ReplayColumns
from rollcast.v1 import replay_pb2


def example_batch(
    n_steps: int = 3,
    n_entries: int = 5,
    *,
    n_finals: int = 4,
    log_prob: bool = True,
    state_size: int = 0,
    frame_stack: int = 1,
) -> ReplayBatch:
    rng = np.random.default_rng(n_steps * 100 + n_entries)
    shape = (n_steps, n_entries)
    cells = np.sort(rng.choice(n_steps * n_entries, min(n_finals, n_steps * n_entries), replace=False))
    # by entry, then by step: parts put side by side again keep this order
    final_index = np.stack([cells % n_steps, cells // n_steps], axis=1)
    return ReplayBatch(
        keys=rng.integers(0, 2**60, n_entries),
        weights=rng.random(n_entries, np.float32),
        n_steps=rng.integers(1, 5, n_entries),
        discount=rng.random(n_entries, np.float32),
        substeps={
            "0": ReplayColumns(
                observation={
                    "a": rng.random((*shape, 2), np.float32),
                    "b": rng.integers(0, 255, (*shape, 4, 4), dtype=np.uint8),
                },
                action=rng.integers(0, 4, shape),
                log_prob=rng.random(shape, np.float32) if log_prob else None,
                last_observation={
                    "a": rng.random((n_entries, 2), np.float32),
                    "b": rng.integers(0, 255, (n_entries, 4, 4), dtype=np.uint8),
                },
                final_observation={
                    "a": rng.random((len(cells), 2), np.float32),
                    "b": rng.integers(0, 255, (len(cells), 4, 4), dtype=np.uint8),
                },
                initial_state=rng.random((n_entries, state_size), np.float32) if state_size else None,
                previous_observation={
                    "a": rng.random((n_entries, frame_stack - 1, 2), np.float32),
                    "b": rng.integers(0, 255, (n_entries, frame_stack - 1, 4, 4), dtype=np.uint8),
                }
                if frame_stack > 1
                else None,
            )
        },
        reward=rng.random(shape, np.float32),
        terminated=rng.random(shape) < 0.5,
        truncated=rng.random(shape) < 0.5,
        valid=rng.random(shape) < 0.5,
        final_index=final_index,
        policy_version=rng.integers(-1, 9, n_entries),
        burn_in=n_steps // 2,
    )


def assert_same(got: ReplayBatch, expected: ReplayBatch) -> None:
    np.testing.assert_equal(dataclasses.asdict(got), dataclasses.asdict(expected))
    for name in ("keys", "weights", "terminated", "final_index"):
        assert getattr(got, name).dtype == getattr(expected, name).dtype


def decode(messages: list[bytes], batch_size: int = 5) -> ReplayBatch:
    assembler = BatchAssembler(batch_size)
    *first, last = [assembler.add(message) for message in messages]
    assert first == [None] * len(first)
    assert last is not None
    return last


def inline(batch: ReplayBatch) -> replay_pb2.SampleResponse:
    """As one message of protobuf alone: easier to spoil."""
    (serialized,) = BatchEncoder(deferred=False).encode(batch)
    return replay_pb2.SampleResponse.FromString(serialized)


def as_parts(pieces: list[ReplayBatch], *, deferred: bool = True) -> list[bytes]:
    """Whole batches as if they were the parts of one."""
    messages = []
    for part, piece in enumerate(pieces):
        (message,) = BatchEncoder(deferred=deferred).encode(piece)
        proto = replay_pb2.SampleResponse.FromString(message)
        proto.part, proto.parts = part, len(pieces)
        messages.append(proto.SerializeToString())
    return messages
