import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.services.errors import InvalidTensorError, LimitExceededError
from rollcast.services.replay import batch_codec as replay_batch_codec
from rollcast.services.replay.batch_assembler import BatchAssembler
from rollcast.services.replay.batch_codec import BatchEncoder
from rollcast.services.replay.replay import ReplayBatch, ReplayColumns
from rollcast.v1 import replay_pb2


def example_batch(n_steps: int = 3, n_entries: int = 5, *, n_finals: int = 4, log_prob: bool = True) -> ReplayBatch:
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
                next_observation={
                    "a": rng.random((n_entries, 2), np.float32),
                    "b": rng.integers(0, 255, (n_entries, 4, 4), dtype=np.uint8),
                },
                final_observation={
                    "a": rng.random((len(cells), 2), np.float32),
                    "b": rng.integers(0, 255, (len(cells), 4, 4), dtype=np.uint8),
                },
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


@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 6),
    st.booleans(),
    st.integers(900, 4000) | st.just(2**22),
    st.integers(100, 4000) | st.just(2**22),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_a_batch_comes_back_whatever_it_is_cut_into(
    n_steps, n_entries, n_finals, log_prob, part_bytes, fast_bytes, deferred
):
    batch = example_batch(n_steps, n_entries, n_finals=n_finals, log_prob=log_prob)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(replay_batch_codec, "PART_BYTES", part_bytes)
        monkeypatch.setattr(replay_batch_codec, "FAST_PART_BYTES", fast_bytes)
        try:
            messages = list(BatchEncoder(deferred=deferred).encode(batch))
        except LimitExceededError:
            assert part_bytes < 2**22
            return
    assert len(messages) == 1 or min(part_bytes, fast_bytes) < 2**22
    assert_same(decode(messages, n_entries), batch)


def test_one_stream_carries_batches_of_every_form():
    """Headers are made, and read, once a form: what is remembered of one must not be used for another."""
    encoder, assemblers = BatchEncoder(deferred=True), {n_entries: BatchAssembler(n_entries) for n_entries in (5, 6)}
    for n_steps, n_entries, n_finals in ((3, 5, 4), (3, 5, 4), (3, 5, 0), (1, 5, 0), (3, 5, 4), (3, 6, 4), (2, 5, 3)):
        batch = example_batch(n_steps, n_entries, n_finals=n_finals)
        (message,) = encoder.encode(batch)
        got = assemblers[n_entries].add(message)
        assert got is not None
        assert_same(got, batch)


def test_the_body_is_not_copied():
    (message,) = BatchEncoder(deferred=True).encode(example_batch())
    batch = BatchAssembler(5).add(message)
    assert batch is not None
    address = np.frombuffer(message, np.uint8).__array_interface__["data"][0]
    assert 0 < batch.reward.__array_interface__["data"][0] - address < len(message)


@pytest.mark.parametrize("spoil", [lambda body: body[:-1], lambda body: body + b"x", lambda body: b""])
def test_a_body_of_another_size_is_refused(spoil):
    (message,) = BatchEncoder(deferred=True).encode(example_batch())
    proto = replay_pb2.SampleResponse.FromString(message)
    proto.body = spoil(proto.body)
    with pytest.raises(InvalidTensorError, match=f"a body of {len(proto.body)} bytes; expected"):
        BatchAssembler(5).add(proto.SerializeToString())


def test_a_body_that_is_not_the_last_field_is_found_each_time():
    (message,) = BatchEncoder(deferred=True).encode(example_batch())
    assembler = BatchAssembler(5)
    for _ in range(3):
        batch = assembler.add(message + replay_pb2.SampleResponse(burn_in=1).SerializeToString())
        assert batch is not None
        assert_same(batch, example_batch())


def test_a_message_that_only_begins_like_the_last_one_is_read_for_what_it_is():
    (message,) = BatchEncoder(deferred=True).encode(example_batch())
    assembler = BatchAssembler(5)
    for _ in range(3):
        assert assembler.add(message) is not None
    with pytest.raises(InvalidTensorError, match="do not parse"):
        assembler.add(message[:-1])
    longer = replay_pb2.SampleResponse.FromString(message)
    longer.parts = 3
    assert assembler.add(longer.SerializeToString()) is None, "the first of three"


@pytest.mark.parametrize("n_before", [0, 3])
def test_bools_in_a_body_are_checked(n_before):
    (message,) = BatchEncoder(deferred=True).encode(example_batch(n_finals=0))
    proto = replay_pb2.SampleResponse.FromString(message)
    n_behind = proto.policy_version.shape[0] * 8 + 15  # the last bools, `valid`, lie before them
    proto.body = proto.body[:-n_behind] + b"\x07" + proto.body[1 - n_behind :]
    assembler = BatchAssembler(5)
    for _ in range(n_before):
        assembler.add(message)
    with pytest.raises(InvalidTensorError, match="valid holds the byte 7"):
        assembler.add(proto.SerializeToString())


@given(st.integers(1, 3), st.integers(1, 9), st.booleans(), st.data())
@settings(deadline=None, max_examples=40)
def test_parts_of_any_size_are_the_batch(n_steps, n_entries, deferred, data):
    batch = example_batch(n_steps, n_entries)
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, max(1, n_entries - 1)), max_size=4)) - {n_entries}), n_entries]
    pieces = [batch.entries(start, stop) for start, stop in itertools.pairwise(cuts)]
    got = decode(as_parts(pieces, deferred=deferred), n_entries)
    assert_same(got, batch)
    assert not got.reward.flags.writeable


def as_parts(pieces: list[ReplayBatch], *, deferred: bool = True) -> list[bytes]:
    """Whole batches as if they were the parts of one."""
    messages = []
    for part, piece in enumerate(pieces):
        (message,) = BatchEncoder(deferred=deferred).encode(piece)
        proto = replay_pb2.SampleResponse.FromString(message)
        proto.part, proto.parts = part, len(pieces)
        messages.append(proto.SerializeToString())
    return messages


@pytest.mark.parametrize("part_bytes", [1500, 2**22])
@pytest.mark.parametrize("n_steps", [1, 3])  # slices of the latter have to be copied
@pytest.mark.parametrize("n_finals", [0, 4])
def test_a_batch_with_other_values_in_its_arrays_is_encoded_anew(monkeypatch, n_finals, n_steps, part_bytes):
    monkeypatch.setattr(replay_batch_codec, "FAST_PART_BYTES", part_bytes)
    encoder, assembler = BatchEncoder(deferred=True), BatchAssembler(20)
    batch = example_batch(n_steps, 20, n_finals=n_finals)
    for reward in (1.0, 2.0, 3.0):
        batch.reward[:] = reward
        batch.keys[:] += 1
        batch.substeps["0"].final_observation["a"][:] += 1
        *first, got = [assembler.add(message) for message in encoder.encode(batch)]
        assert bool(first) == (part_bytes < 2**22)
        assert_same(got, batch)


def test_an_encoder_that_was_left_in_the_middle_begins_anew(monkeypatch):
    monkeypatch.setattr(replay_batch_codec, "FAST_PART_BYTES", 1500)
    encoder, batch = BatchEncoder(deferred=True), example_batch(1, 20, n_finals=0)
    next(encoder.encode(batch))
    assert_same(decode(list(encoder.encode(batch)), 20), batch)
    next(encoder.encode(batch))
    assert_same(decode(list(encoder.encode(batch)), 20), batch)


@pytest.mark.parametrize("n_entries", [4, 6])
def test_a_batch_that_was_not_asked_for_is_refused(n_entries):
    batch = example_batch(n_entries=n_entries)
    (message,) = BatchEncoder(deferred=True).encode(batch)
    with pytest.raises(InvalidTensorError, match=f"{n_entries} entries; expected 5"):
        BatchAssembler(5).add(message)
    with pytest.raises(InvalidTensorError, match=f"{n_entries} entries; expected 5"):
        decode(as_parts([batch.entries(0, 3), batch.entries(3, n_entries)]), 5)


def test_parts_of_different_batches_are_refused():
    first = example_batch(n_entries=2)
    for other in (example_batch(n_steps=2), example_batch(log_prob=False)):
        with pytest.raises(InvalidTensorError, match="other columns or another T"):
            decode(as_parts([first, other.entries(0, 3)]))


def test_no_more_is_allocated_than_a_batch_may_have():
    messages = as_parts([example_batch(n_entries=2), example_batch(n_entries=2)])
    with pytest.raises(InvalidTensorError, match="expected at most 268435456"):
        BatchAssembler(2**40).add(messages[0])


def test_shapes_that_cannot_be_are_refused():
    proto = replay_pb2.SampleResponse(parts=1)
    for name, shape in (("keys", [0]), ("weights", [0]), ("n_steps", [0]), ("discount", [0]), ("policy_version", [0])):
        getattr(proto, name).shape.extend(shape)
    for name in ("reward", "terminated", "truncated", "valid"):
        getattr(proto, name).shape.extend([2**40, 0])
    proto.final_index.shape.extend([0, 2])
    source = inline(example_batch())
    for name in (field.name for field, _ in proto.ListFields() if field.message_type):
        getattr(proto, name).dtype = getattr(source, name).dtype
        getattr(proto, name).deferred = True
    with pytest.raises(InvalidTensorError, match="impossible shapes"):
        BatchAssembler(0).add(proto.SerializeToString())


def test_a_part_out_of_order_is_refused():
    proto = inline(example_batch())
    proto.part, proto.parts = 1, 2
    with pytest.raises(InvalidTensorError, match="in order"):
        BatchAssembler(5).add(proto.SerializeToString())
    proto.part, proto.parts = 0, 0
    with pytest.raises(InvalidTensorError, match="in order"):
        BatchAssembler(5).add(proto.SerializeToString())


@pytest.mark.parametrize("field", ["keys", "weights", "n_steps", "discount", "policy_version", "terminated", "valid"])
def test_a_column_of_another_length_is_refused(field):
    proto = inline(example_batch())
    other = inline(example_batch(n_entries=4))
    getattr(proto, field).CopyFrom(getattr(other, field))
    with pytest.raises(InvalidTensorError, match=field):
        BatchAssembler(5).add(proto.SerializeToString())


def test_leaves_of_another_length_are_refused():
    for name in ("observation", "next_observation", "final_observation"):
        proto = inline(example_batch())
        other = inline(example_batch(n_entries=4, n_finals=3))
        getattr(proto.substeps[0], name)[1].CopyFrom(getattr(other.substeps[0], name)[1])
        with pytest.raises(InvalidTensorError, match="'b' has shape"):
            BatchAssembler(5).add(proto.SerializeToString())


def test_bytes_that_are_no_message_are_refused():
    with pytest.raises(InvalidTensorError, match="3 bytes that do not parse"):
        BatchAssembler(5).add(b"\x12\x34x")


def test_rewards_without_steps_are_refused():
    with pytest.raises(InvalidTensorError, match="reward"):
        BatchAssembler(5).add(replay_pb2.SampleResponse(parts=1).SerializeToString())
