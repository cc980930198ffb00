from typing import get_args

import pytest

from rollcast.services.errors import InvalidInputError
from rollcast.services.limits.limits import MAX_HIDDEN_LAYERS, MAX_NETWORK_LENGTH, MAX_RECURRENT_SIZE
from rollcast.services.policies.policies import PolicyHead, PolicySpec, Recurrence
from rollcast.services.policies.spec_codec import policy_spec_from_proto, policy_spec_to_proto


@pytest.mark.parametrize("head", get_args(PolicyHead))
def test_every_head_comes_back_and_the_default_is_left_out(head: PolicyHead):
    spec = PolicySpec(network="m:f", hidden_sizes=(8, 9), activation="relu", head=head)
    proto = policy_spec_to_proto(spec)
    assert proto.head == ("" if head == "default" else head)
    assert policy_spec_from_proto(proto) == spec
    proto.head = head  # spelt out, as another learner may
    assert policy_spec_from_proto(proto) == spec


@pytest.mark.parametrize("recurrence", get_args(Recurrence))
def test_every_recurrence_comes_back_and_none_is_left_out(recurrence: Recurrence):
    spec = PolicySpec(recurrence=recurrence, **({} if recurrence == "none" else {"recurrent_size": 7}))
    proto = policy_spec_to_proto(spec)
    assert (proto.recurrence, proto.recurrent_size) == (("", 0) if recurrence == "none" else (recurrence, 7))
    assert policy_spec_from_proto(proto) == spec
    assert spec.state_size == {"none": 0, "lstm": 14, "gru": 7}[recurrence]


@pytest.mark.parametrize("size", [0, MAX_RECURRENT_SIZE + 1])
def test_refuses_memory_of_impossible_size(size: int):
    proto = policy_spec_to_proto(PolicySpec(recurrence="gru"))
    proto.recurrent_size = size
    with pytest.raises(InvalidInputError, match=f"a recurrent_size of {size}; expected 1 to {MAX_RECURRENT_SIZE}"):
        policy_spec_from_proto(proto)


def test_normalisation_comes_back_and_is_left_out_of_the_message_of_before():
    spec = PolicySpec(normalize_observations=True, observation_clip=5.5)
    assert policy_spec_from_proto(policy_spec_to_proto(spec)) == spec
    assert (
        policy_spec_to_proto(PolicySpec()).SerializeToString()
        == policy_spec_to_proto(PolicySpec(observation_clip=3.0)).SerializeToString()
    ), "an old actor's message"


def test_frame_stack_comes_back_and_single_frames_are_left_out():
    assert policy_spec_from_proto(policy_spec_to_proto(PolicySpec(frame_stack=4))) == PolicySpec(frame_stack=4)
    assert policy_spec_to_proto(PolicySpec()).frame_stack == 0, "an old actor's message"
    with pytest.raises(InvalidInputError, match="a frame_stack of 0; expected at least 1"):
        PolicySpec(frame_stack=0)


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan"), float("inf"), 1e7])
def test_refuses_a_bound_that_is_none(clip: float):
    proto = policy_spec_to_proto(PolicySpec(normalize_observations=True))
    proto.observation_clip = clip
    with pytest.raises(InvalidInputError, match=r"observation_clip .*; expected a number above 0 and at most 1e"):
        policy_spec_from_proto(proto)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("activation", "gelu", "activation 'gelu'; expected one of"),
        ("head", "two", "head 'two'; expected one of"),
        ("recurrence", "rnn", "recurrence 'rnn'; expected one of"),
        ("frame_stack", 65, "a frame_stack of 65; expected at most 64"),
        ("hidden_sizes", (64, 0), "2 hidden layers, the first of .64, 0.; expected at most 64, each of at least 1"),
        ("hidden_sizes", (1,) * (MAX_HIDDEN_LAYERS + 1), "65 hidden layers"),
        ("network", "n" * (MAX_NETWORK_LENGTH + 1), "a name of 513 characters; expected at most 512"),
    ],
)
def test_refuses_spec_that_no_learner_sends(field: str, value: object, message: str):
    proto = policy_spec_to_proto(PolicySpec())
    if field == "hidden_sizes":
        proto.hidden_sizes[:] = value
    else:
        setattr(proto, field, value)
    with pytest.raises(InvalidInputError, match=message):
        policy_spec_from_proto(proto)
