"""Hostile streams of rollouts: messages out of order, frames and bodies that do not fit, headers that change."""

import tracemalloc

import numpy as np
import pytest

from rollcast.services.errors import (
    InvalidInputError,
    InvalidRolloutError,
    InvalidTensorError,
    LimitExceededError,
    MissingMessageError,
)
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.streams.receiver import parse_request
from rollcast.services.wire.tensors import tensor_to_proto
from rollcast.v1 import rollout_pb2, tensor_pb2
from tests.attacks.spoilt_rollouts import (
    N_ENVS,
    N_STEPS,
    PIXELS,
    PLAIN,
    B,
    T,
    assembler,
    message,
    refused,
)
from tests.rollouts import random_rollout


def test_messages_out_of_order():
    refused(rollout_pb2.StreamRolloutsRequest(), InvalidRolloutError, "without content")
    refused(rollout_pb2.StreamRolloutsRequest(open=rollout_pb2.OpenStream()), InvalidRolloutError, "open")
    frame = rollout_pb2.TensorFrame(sequence=1)
    refused(rollout_pb2.StreamRolloutsRequest(frame=frame), MissingMessageError, "no rollout waits for one")


@pytest.fixture
def framed():
    rollout = random_rollout(PIXELS, N_STEPS, N_ENVS)
    return [parse_request(message) for message in RolloutEncoder().encode(rollout)]


def test_frames_out_of_order_too_many_or_too_big(framed):
    header, first, *_, last = framed
    assert 1 < len(last.body) < 1 << 20
    n_sent = 1 << 20
    for frame, body, error, match in (
        (
            (1, n_sent + 1),
            first.body,
            InvalidRolloutError,
            "offset 1048577; expected .* offset 1048576",
        ),
        ((1, 0), first.body, InvalidRolloutError, "offset 0; expected .* offset 1048576"),
        ((2, n_sent), first.body, InvalidRolloutError, "a frame of rollout 2"),
        ((1, n_sent), memoryview(b""), InvalidRolloutError, "a frame without a body"),
        ((1, n_sent), memoryview(bytes(n_sent + 1)), LimitExceededError, "body of 1048577 bytes.*at most 1048576"),
    ):
        victim = assembler(PIXELS, N_STEPS, N_ENVS)
        assert victim.add(*header) is None
        sequence, offset = frame
        bad = rollout_pb2.StreamRolloutsRequest(frame=rollout_pb2.TensorFrame(sequence=sequence, offset=offset))
        with pytest.raises(error, match=match):
            victim.add(bad, body)
    victim = assembler(PIXELS, N_STEPS, N_ENVS)
    for message_with_body in framed[:-1]:
        assert victim.add(*message_with_body) is None
    with pytest.raises(InvalidRolloutError, match=r"at most \d+ more"):
        victim.add(last.request, memoryview(bytes(last.body) + b"x"))


def test_a_rollout_before_the_last_frame_and_a_frame_after_it(framed):
    victim = assembler(PIXELS, N_STEPS, N_ENVS)
    assert victim.add(*framed[0]) is None
    with pytest.raises(MissingMessageError, match=r"1048576 of .* deferred bytes before the next rollout"):
        victim.add(*framed[0])
    victim = assembler(PIXELS, N_STEPS, N_ENVS)
    for message_with_body in framed[:-1]:
        assert victim.add(*message_with_body) is None
    assert victim.add(*framed[-1]) is not None
    with pytest.raises(MissingMessageError, match="no rollout waits"):
        victim.add(*framed[-1])


def test_deferred_tensors_with_bytes_or_without_size():
    request = message()
    request.rollout.reward.deferred = True
    refused(request, InvalidRolloutError, "column reward deferred, of 24 bytes, 24 of them inline")
    request = message(n_final=0)
    request.rollout.final_index.CopyFrom(tensor_to_proto(np.zeros((0, 2), np.int32), deferred=True))
    refused(request, InvalidRolloutError, "column final_index deferred, of 0 bytes")


def test_a_body_that_nobody_announced():
    with pytest.raises(InvalidRolloutError, match="a body of 1 bytes at offset 0; expected at most 0"):
        assembler().add(message(), memoryview(b"x"))


def two_deferred():
    request = message()
    request.rollout.reward.CopyFrom(tensor_to_proto(np.zeros((T, B), np.float32), deferred=True))
    request.rollout.terminated.CopyFrom(tensor_to_proto(np.zeros((T, B), np.bool_), deferred=True))
    return request


@pytest.mark.parametrize("n_in_frame", [0, 7, 30])
def test_deferred_values_are_checked_too(n_in_frame):
    nan = np.full((T, B), np.nan, np.float32).tobytes()
    for content, match in (
        (nan + bytes(6), r"reward holds nan at \(t, b\) = \(0, 0\)"),
        (bytes(24) + b"\x07" * 6, "terminated holds the byte 7"),
    ):
        n_in_header = len(content) - n_in_frame
        victim, bodies = assembler(), memoryview(content)
        with pytest.raises(InvalidTensorError, match=match):
            assert victim.add(two_deferred(), bodies[:n_in_header]) is None
            frame = rollout_pb2.TensorFrame(sequence=1, offset=n_in_header)
            victim.add(rollout_pb2.StreamRolloutsRequest(frame=frame), bodies[n_in_header:])


def test_columns_that_are_checked_together_are_told_apart():
    """log_prob, last_observation, ... and reward lie next to each other as floats: one pass, but the right name."""
    for column in ("log_prob", "last_observation", "final_observation", "reward"):
        rollout = random_rollout(PLAIN, T, B)
        columns = rollout.substeps["0"]
        array = rollout.reward if column == "reward" else getattr(columns, column)
        (array if isinstance(array, np.ndarray) else array[""])[1, 0] = np.inf
        (serialized,) = RolloutEncoder().encode(rollout)
        with pytest.raises(InvalidTensorError, match=f"column .*{column} holds inf"):
            assembler(PLAIN).add(*parse_request(serialized))


def test_a_header_that_differs_from_the_last_one_is_checked_again():
    victim, encoder = assembler(PLAIN), RolloutEncoder()
    (first,) = encoder.encode(random_rollout(PLAIN, T, B, sequence=1))
    assert victim.add(*parse_request(first)) is not None
    for spoil in (
        lambda header: setattr(header.reward, "dtype", tensor_pb2.DATA_TYPE_INT32),
        lambda header: header.reward.shape.reverse(),
        lambda header: setattr(header.substeps[0], "key", "1"),
        lambda header: setattr(header.substeps[0].observation[0], "path", "x"),
        lambda header: header.substeps[0].observation[0].tensor.shape.append(1),
        lambda header: setattr(header.truncated, "deferred", False),
        lambda header: header.ClearField("terminated"),
        lambda header: header.valid.CopyFrom(tensor_to_proto(np.zeros((T, 1), np.bool_))),
        lambda header: header.valid.SetInParent(),
        lambda header: header.final_index.shape.append(1),
        lambda header: header.ClearField("final_index"),
        lambda header: setattr(header, "actor_id", "b"),
    ):
        (second,) = encoder.encode(random_rollout(PLAIN, T, B, sequence=2))
        request, body = parse_request(second)
        spoil(request.rollout)
        with pytest.raises(InvalidInputError):
            victim.add(request, body)
    assert victim.add(*parse_request(second)) is not None


def test_nothing_is_allocated_before_the_last_column_is_checked(framed):
    request, body = framed[0]
    request.rollout.truncated.shape[0] = 1
    tracemalloc.start()
    with pytest.raises(InvalidTensorError, match="column truncated"):
        assembler(PIXELS, N_STEPS, N_ENVS).add(request, body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
