"""The chunks of a policy, put together again."""

import numpy as np
import pytest

from rollcast.services.errors import InvalidTensorError, LimitExceededError
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.codec import encode_policy
from rollcast.v1 import policy_pb2


def chunks(encoded):
    return [policy_pb2.GetPolicyResponse.FromString(message).chunk for message in encoded.chunks]


def assemble(encoded, **options):
    assembler = PolicyAssembler(**options)
    return [assembler.add(chunk) for chunk in chunks(encoded)][-1]


def test_rejects_policy_above_limit_with_both_sizes():
    with pytest.raises(LimitExceededError, match=r"policy 1 has \d+ bytes; expected at most 100"):
        assemble(encode_policy(1, {"w": np.zeros(100)}), max_policy_bytes=100)


def test_accepts_next_version_after_an_error():
    assembler = PolicyAssembler()
    good = chunks(encode_policy(2, {"w": np.zeros(3)}))[0]
    bad = policy_pb2.PolicyChunk.FromString(good.SerializeToString())
    bad.digest = b"0" * 16
    with pytest.raises(InvalidTensorError, match="digest"):
        assembler.add(bad)
    assert assembler.add(good)[0] == 2


def test_a_policy_that_must_be_whole_is_refused_in_parts_and_the_next_one_taken():
    assembler = PolicyAssembler()
    first, _ = chunks(encode_policy(1, {"w": np.zeros(300_000, np.float32)}))
    with pytest.raises(InvalidTensorError, match="one of 2 chunks; expected all of it in one"):
        assembler.add_whole(first)
    chunk = policy_pb2.PolicyChunk.FromString(encode_policy(2, {"w": np.ones(3, np.float32)}).chunk)
    version, state = assembler.add_whole(chunk)
    assert (version, state["w"].tolist()) == (2, [1, 1, 1])
