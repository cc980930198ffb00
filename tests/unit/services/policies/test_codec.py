import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollcast.services.errors import InvalidTensorError, LimitExceededError
from rollcast.services.limits.limits import MAX_CHUNK_BYTES
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.v1 import policy_pb2

STATES = st.dictionaries(
    st.text("abc.0", min_size=1, max_size=8),
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3), elements=st.floats(-9, 9, width=32)),
    max_size=5,
)


def chunks(encoded):
    return [policy_pb2.GetPolicyResponse.FromString(message).chunk for message in encoded.chunks]


def assemble(encoded, **options):
    assembler = PolicyAssembler(**options)
    return [assembler.add(chunk) for chunk in chunks(encoded)][-1]


@given(STATES, st.integers(1, 2**64 - 1))
def test_policy_comes_back_bit_by_bit(state, version):
    actual_version, actual = assemble(encode_policy(version, state))
    assert actual_version == version
    assert actual.keys() == state.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(actual[name], array, strict=True)


def test_large_policies_are_cut_into_chunks_that_both_rpcs_understand():
    state = {"w": np.arange(1_000_000, dtype=np.float32), "view": np.eye(3)[:, ::2].T}
    encoded = encode_policy(7, state)
    assert [len(chunk.payload) for chunk in chunks(encoded)[:-1]] == [MAX_CHUNK_BYTES] * 3
    assert sum(len(chunk.payload) for chunk in chunks(encoded)) == encoded.n_bytes
    for message in encoded.chunks:
        theirs = policy_pb2.SubscribePolicyResponse.FromString(message)
        assert theirs.chunk == policy_pb2.GetPolicyResponse.FromString(message).chunk
        assert len(message) < MAX_CHUNK_BYTES + 100
    np.testing.assert_array_equal(assemble(encoded)[1]["view"], state["view"])


@given(st.floats(0.0, 1.0))
def test_progress_comes_back_in_every_encoding(progress):
    state = {"w": np.arange(64, dtype=np.float32)}
    base = encode_policy(6, {"w": np.zeros(64, np.float32)})
    encoded = encode_policy(7, state, progress)
    for messages in (encoded.chunks, encoded.bfloat16(), encoded.delta(base.as_base())):
        assembler = PolicyAssembler(encodings=list(PolicyEncoding))
        for chunk in chunks(base):
            assembler.add(chunk)
        assert assembler.progress == 0.0
        for message in messages:
            assembler.add(policy_pb2.GetPolicyResponse.FromString(message).chunk)
        assert assembler.progress == progress


@pytest.mark.parametrize("progress", [-0.1, 1.1, np.nan, np.inf])
def test_rejects_progress_that_is_none(progress):
    with pytest.raises(InvalidTensorError, match=r"policy 7, chunk 0 of 1 has progress .*; expected a number in"):
        assemble(encode_policy(7, {"w": np.zeros(2, np.float32)}, progress))


def test_rejects_dtype_off_the_whitelist():
    with pytest.raises(InvalidTensorError, match=r"policy 1: w has dtype complex128"):
        encode_policy(1, {"w": np.zeros(2, np.complex128)})


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
