"""Parts of batches, put together or refused."""

import pytest

from rollcast.services.errors import InvalidTensorError
from rollcast.services.replay.batch_assembler import BatchAssembler
from rollcast.services.replay.batch_codec import BatchEncoder
from rollcast.v1 import replay_pb2
from tests.unit.services.replay.example_batches import as_parts, assert_same, decode, example_batch, inline


def test_finds_body_that_is_not_the_last_field():
    (message,) = BatchEncoder(deferred=True).encode(example_batch())
    assembler = BatchAssembler(5)
    for _ in range(3):
        batch = assembler.add(message + replay_pb2.SampleResponse(burn_in=1).SerializeToString())
        assert batch is not None
        assert_same(batch, example_batch())


def test_message_that_only_begins_like_the_last_one_is_parsed_again():
    (message,) = BatchEncoder(deferred=True).encode(example_batch())
    assembler = BatchAssembler(5)
    for _ in range(3):
        assert assembler.add(message) is not None
    with pytest.raises(InvalidTensorError, match="do not parse"):
        assembler.add(message[:-1])
    longer = replay_pb2.SampleResponse.FromString(message)
    longer.parts = 3
    assert assembler.add(longer.SerializeToString()) is None, "the first of three"


@pytest.mark.parametrize("n_entries", [4, 6])
def test_rejects_batch_of_another_size(n_entries):
    batch = example_batch(n_entries=n_entries)
    (message,) = BatchEncoder(deferred=True).encode(batch)
    with pytest.raises(InvalidTensorError, match=f"{n_entries} entries; expected 5"):
        BatchAssembler(5).add(message)
    with pytest.raises(InvalidTensorError, match=f"{n_entries} entries; expected 5"):
        decode(as_parts([batch.entries(0, 3), batch.entries(3, n_entries)]), 5)


def test_rejects_parts_of_different_batches():
    first = example_batch(n_entries=2)
    for other in (example_batch(n_steps=2), example_batch(log_prob=False)):
        with pytest.raises(InvalidTensorError, match="other columns or another T"):
            decode(as_parts([first, other.entries(0, 3)]))


def test_rejects_batch_above_limit_before_allocating():
    messages = as_parts([example_batch(n_entries=2), example_batch(n_entries=2)])
    with pytest.raises(InvalidTensorError, match="expected at most 268435456"):
        BatchAssembler(2**40).add(messages[0])


def test_rejects_part_out_of_order():
    proto = inline(example_batch())
    proto.part, proto.parts = 1, 2
    with pytest.raises(InvalidTensorError, match="in order"):
        BatchAssembler(5).add(proto.SerializeToString())
    proto.part, proto.parts = 0, 0
    with pytest.raises(InvalidTensorError, match="in order"):
        BatchAssembler(5).add(proto.SerializeToString())


def test_rejects_bytes_that_do_not_parse():
    with pytest.raises(InvalidTensorError, match="3 bytes that do not parse"):
        BatchAssembler(5).add(b"\x12\x34x")
