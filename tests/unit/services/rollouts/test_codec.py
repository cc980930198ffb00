import dataclasses

import numpy as np
import psutil
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import LimitExceededError
from rollcast.services.limits.limits import MAX_FRAME_BYTES
from rollcast.services.rollouts import codec as rollout_codec
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.rollouts.codec import RolloutEncoder, rollout_to_proto
from rollcast.services.spaces.spaces import SubstepSpaces
from rollcast.services.streams.receiver import parse_request
from rollcast.v1 import rollout_pb2
from tests.rollouts import NESTED, assert_same_rollout, random_rollout

PIXELS = {"0": SubstepSpaces(observation=spaces.Box(0, 255, (64, 64), np.uint8), action=spaces.Discrete(4))}


def assemble(environment, rollout, n_steps, n_envs, **options):
    assembler = RolloutAssembler(RolloutShape(environment, n_steps, n_envs), actor_id="a", incarnation=1, **options)
    rollouts = [assembler.add(*parse_request(message)) for message in RolloutEncoder().encode(rollout)]
    assert rollouts[:-1] == [None] * (len(rollouts) - 1)
    return rollouts[-1]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 5), st.booleans(), st.integers(0, 99))
@settings(max_examples=30)
def test_round_trip_in_one_message(n_steps, n_envs, n_final, has_valid, seed):
    valid = np.ones((n_steps, n_envs), np.bool_) if has_valid else None
    rollout = random_rollout(NESTED, n_steps, n_envs, n_final=min(n_final, n_steps * n_envs), seed=seed, valid=valid)
    assert len(list(RolloutEncoder().encode(rollout))) == 1
    assert_same_rollout(assemble(NESTED, rollout, n_steps, n_envs), rollout)


@given(st.lists(st.sampled_from(["0", "1"]), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=30)
def test_rollouts_of_several_substeps_come_in_any_order_over_one_stream(keys, n_envs, seed):
    encoder, assembler = RolloutEncoder(), RolloutAssembler(RolloutShape(NESTED, 3, n_envs))
    for sequence, key in enumerate(keys, start=1):
        rollout = random_rollout(NESTED, 3, n_envs, key=key, sequence=sequence, seed=seed)
        assert rollout.reward.shape == (3, n_envs * NESTED[key].n_agents)
        (message,) = encoder.encode(rollout)
        assert_same_rollout(assembler.add(*parse_request(message)), rollout)


@given(st.integers(1, 300), st.integers(0, 99))
@settings(max_examples=30)
def test_round_trip_in_frames_cut_anywhere(frame_bytes, seed):
    rollout = random_rollout(NESTED, 3, 2, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_codec, "MAX_FRAME_BYTES", frame_bytes)
        assert_same_rollout(assemble(NESTED, rollout, 3, 2), rollout)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 5), st.integers(0, 99))
@settings(max_examples=30)
def test_round_trip_as_one_message_of_any_protobuf_library(n_steps, n_envs, n_final, seed):
    rollout = random_rollout(NESTED, n_steps, n_envs, n_final=min(n_final, n_steps * n_envs), seed=seed)
    serialized = rollout_pb2.StreamRolloutsRequest(rollout=rollout_to_proto(rollout)).SerializeToString()
    assembler = RolloutAssembler(RolloutShape(NESTED, n_steps, n_envs))
    assert_same_rollout(assembler.add(*parse_request(serialized)), rollout)


def test_a_large_rollout_travels_in_bodies_of_one_mebibyte():
    rollout = random_rollout(PIXELS, 100, 8)
    n_bytes = rollout_to_proto(rollout).ByteSize()
    messages = [parse_request(message) for message in RolloutEncoder().encode(rollout)]
    assert [message.request.WhichOneof("message") for message in messages] == ["rollout"] + ["frame"] * 3
    assert messages[0].request.ByteSize() < 1 << 12, "the header"
    sizes = [len(message.body) for message in messages]
    assert sizes[:-1] == [MAX_FRAME_BYTES] * 3
    assert 0 < n_bytes - sum(sizes) < 1 << 12
    assert [message.request.frame.offset for message in messages] == [0, 1 << 20, 2 << 20, 3 << 20]
    assert_same_rollout(assemble(PIXELS, rollout, 100, 8), rollout)


def test_one_encoder_encodes_rollouts_of_every_form():
    """The header is made once a form; what changes from rollout to rollout must change in it."""
    encoder, assembler = RolloutEncoder(), RolloutAssembler(RolloutShape(NESTED, 3, 2))
    for sequence, n_final in enumerate((2, 2, 0, 1, 2, 0), start=1):
        valid = np.ones((3, 2), np.bool_) if sequence % 2 else None
        rollout = random_rollout(NESTED, 3, 2, n_final=n_final, seed=sequence, sequence=sequence, valid=valid)
        (message,) = encoder.encode(rollout)
        assert_same_rollout(assembler.add(*parse_request(message)), rollout)


def test_versions_of_steps_travel_without_a_change_of_anything_else():
    rollout = random_rollout(NESTED, 3, 2)
    stamped = dataclasses.replace(rollout, policy_versions=np.array([[0, -1], [3, 2**40], [7, 3]]))
    assert_same_rollout(assemble(NESTED, stamped, 3, 2), stamped)
    encoder = RolloutEncoder()
    plain, with_versions, plain_again = (b"".join(encoder.encode(each)) for each in (rollout, stamped, rollout))
    assert plain == plain_again != with_versions


def test_a_learner_that_knows_no_versions_of_steps_reads_the_rest():
    rollout = random_rollout(NESTED, 3, 2)
    stamped = dataclasses.replace(rollout, policy_versions=np.array([[0, -1], [3, 2**40], [7, 3]]))
    (message,) = RolloutEncoder().encode(stamped)
    request, body = parse_request(message)
    request.rollout.ClearField("policy_versions")
    assert_same_rollout(RolloutAssembler(RolloutShape(NESTED, 3, 2)).add(request, body), rollout)


@pytest.mark.slow
def test_encoder_does_not_grow_with_its_rollouts():
    """A protobuf message that is filled anew and anew keeps all it ever had, where no tracer of Python's sees it."""
    rollouts = [
        dataclasses.replace(random_rollout(NESTED, 2, 2, n_final=n_final), actor_id="a" * 4000) for n_final in (0, 1)
    ]
    encoder, process = RolloutEncoder(), psutil.Process()

    def encode(n_rollouts):
        for i in range(n_rollouts):
            for _ in encoder.encode(dataclasses.replace(rollouts[i // 20 % 2], sequence=i + 1)):
                pass
        return process.memory_info().rss

    before = encode(500)
    assert encode(5000) - before < 8e6, "bytes, of the 20 million of their names"


def test_leaves_come_in_any_order_and_are_returned_in_that_of_the_space():
    rollout = random_rollout(NESTED, 3, 2)
    columns = rollout.substeps["0"]
    shuffled = dataclasses.replace(columns, observation=dict(reversed(columns.observation.items())))
    mixed = dataclasses.replace(rollout, substeps={"0": shuffled})
    assert_same_rollout(assemble(NESTED, mixed, 3, 2), rollout)


def test_rejects_rollout_above_limit_with_actor_column_and_sizes():
    with pytest.raises(
        LimitExceededError, match=r"actor 'a', rollout 1 has \d+ bytes, 24576 of them in column 0/obs.*1000"
    ):
        assemble(PIXELS, random_rollout(PIXELS, 3, 2), 3, 2, max_rollout_bytes=1000)
