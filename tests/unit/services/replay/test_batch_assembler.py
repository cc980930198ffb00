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
        with pytest.raises(InvalidTensorError, match="different columns or a different T"):
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


@pytest.mark.parametrize("spoil", [lambda body: body[:-1], lambda body: body + b"x", lambda body: b""])
def test_rejects_body_of_another_size(spoil):
    (message,) = BatchEncoder(deferred=True).encode(example_batch())
    proto = replay_pb2.SampleResponse.FromString(message)
    proto.body = spoil(proto.body)
    with pytest.raises(InvalidTensorError, match=f"a body of {len(proto.body)} bytes; expected"):
        BatchAssembler(5).add(proto.SerializeToString())


@pytest.mark.parametrize("n_before", [0, 3])
def test_rejects_bool_in_body_that_is_neither_0_nor_1(n_before):
    (message,) = BatchEncoder(deferred=True).encode(example_batch(n_finals=0))
    proto = replay_pb2.SampleResponse.FromString(message)
    n_behind = proto.policy_version.shape[0] * 8 + 15  # the last bools, `valid`, lie before them
    proto.body = proto.body[:-n_behind] + b"\x07" + proto.body[1 - n_behind :]
    assembler = BatchAssembler(5)
    for _ in range(n_before):
        assembler.add(message)
    with pytest.raises(InvalidTensorError, match="valid holds the byte 7"):
        assembler.add(proto.SerializeToString())


def test_rejects_impossible_shapes():
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


@pytest.mark.parametrize("field", ["keys", "weights", "n_steps", "discount", "policy_version", "terminated", "valid"])
def test_rejects_column_of_another_length(field):
    proto = inline(example_batch())
    other = inline(example_batch(n_entries=4))
    getattr(proto, field).CopyFrom(getattr(other, field))
    with pytest.raises(InvalidTensorError, match=field):
        BatchAssembler(5).add(proto.SerializeToString())


@pytest.mark.parametrize("name", ["observation", "next_observation", "final_observation", "previous_observation"])
def test_rejects_leaves_of_another_length(name):
    proto = inline(example_batch(frame_stack=3))
    other = inline(example_batch(n_entries=4, n_finals=3, frame_stack=3))
    getattr(proto.substeps[0], name)[1].CopyFrom(getattr(other.substeps[0], name)[1])
    with pytest.raises(InvalidTensorError, match="'b' has shape"):
        BatchAssembler(5).add(proto.SerializeToString())


def test_rejects_reward_without_steps():
    with pytest.raises(InvalidTensorError, match="reward"):
        BatchAssembler(5).add(replay_pb2.SampleResponse(parts=1).SerializeToString())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.shape.pop(),
        lambda state: state.ClearField("shape"),
        lambda state: state.CopyFrom(inline(example_batch(n_entries=4, state_size=3)).substeps[0].initial_state),
        lambda state: state.CopyFrom(inline(example_batch()).keys),
    ],
    ids=["a dimension less", "no shape", "of other entries", "of another dtype"],
)
def test_rejects_recurrent_states_that_do_not_fit(spoil):
    proto = inline(example_batch(state_size=3))
    spoil(proto.substeps[0].initial_state)
    with pytest.raises(InvalidTensorError, match="initial_state"):
        BatchAssembler(5).add(proto.SerializeToString())
