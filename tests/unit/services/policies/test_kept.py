import numpy as np
import pytest

from rollcast.services.policies.bfloat16 import rounded_to_bfloat16
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.policies.kept import KeptPolicies, PolicyEncoder
from rollcast.v1 import policy_pb2

RNG = np.random.default_rng(0)
WEIGHTS = rounded_to_bfloat16(RNG.standard_normal(5000, np.float32))
N_BYTES = encode_policy(1, {"w": WEIGHTS}).n_bytes
FULL, BFLOAT16, DELTA = policy_pb2.PolicyEncoding.values()


def version(number, weights=WEIGHTS):
    return encode_policy(number, {"w": rounded_to_bfloat16(weights + np.float32(1e-4 * number))})


def sent(encoder, encoded):
    """Returns encoding and base of the messages, and their size."""
    messages = encoder.chunks(encoded)
    chunk = policy_pb2.SubscribePolicyResponse.FromString(messages[0]).chunk
    return chunk.encoding, chunk.base_version, sum(map(len, messages))


def test_an_encoding_of_a_version_is_made_once_for_all():
    kept = KeptPolicies()
    one, two = version(1), version(2)
    with (
        PolicyEncoder(kept, [PolicyEncoding.DELTA], 0, b"") as a,
        PolicyEncoder(kept, [PolicyEncoding.DELTA], 0, b"") as b,
    ):
        assert a.chunks(one) is b.chunks(one)
        assert a.chunks(two) is b.chunks(two)


def test_deltas_to_versions_of_one_number_but_of_different_learners_are_told_apart():
    newest, here = version(3), version(1)
    elsewhere = version(1, WEIGHTS + 1)
    assert newest.delta(here.as_base()) is newest.delta(here.as_base())
    assert newest.delta(here.as_base()) != newest.delta(elsewhere.as_base())


def test_deltas_to_versions_of_the_same_bytes_name_the_version_that_the_subscriber_has():
    """As after updates that change nothing: a delta to the other version would be refused."""
    kept, one, same, newest = KeptPolicies(), version(1), version(2, WEIGHTS - np.float32(1e-4)), version(3)
    assert one.digest == same.digest
    for held in (one, same):
        kept.hold(held.as_base())
    for held in (one, same):
        with PolicyEncoder(kept, [PolicyEncoding.DELTA], held.version, held.digest) as encoder:
            assert sent(encoder, newest)[:2] == (DELTA, held.version)


def test_who_comes_back_with_a_version_gets_the_difference_to_it_and_others_a_whole_one():
    kept = KeptPolicies()
    one, two = version(1), version(2)
    with PolicyEncoder(kept, [PolicyEncoding.DELTA], 0, b"") as encoder:
        encoder.chunks(one)
    for held, digest, base in (
        (1, one.digest, 1),
        (1, b"", 0),
        (1, bytes(16), 0),  # of another learner
        (7, one.digest, 0),
    ):
        with PolicyEncoder(kept, [PolicyEncoding.DELTA], held, digest) as encoder:
            assert sent(encoder, two)[:2] == (DELTA, base)


def test_a_file_of_another_size_is_sent_whole():
    kept = KeptPolicies()
    with PolicyEncoder(kept, [PolicyEncoding.DELTA], 0, b"") as encoder:
        encoder.chunks(version(1))
        assert sent(encoder, version(2, WEIGHTS[:-1]))[:2] == (DELTA, 0)
        noise = np.frombuffer(RNG.bytes(4 * 5000), np.float32)
        assert sent(encoder, encode_policy(3, {"w": noise}))[0] == FULL, "no delta would be smaller"


def test_what_would_look_like_a_bomb_is_sent_as_it_is():
    with PolicyEncoder(KeptPolicies(), [PolicyEncoding.DELTA], 0, b"") as encoder:
        assert sent(encoder, encode_policy(1, {"w": np.zeros(5000, np.float32)}))[0] == FULL
        assert sent(encoder, encode_policy(2, {"w": np.zeros(5000, np.float32)}))[:2] == (DELTA, 1)


@pytest.mark.parametrize("options", [{"max_policies": 3}, {"max_bytes": 3 * N_BYTES}], ids=["number", "bytes"])
def test_what_nobody_holds_goes_first(options):
    kept = KeptPolicies(**options)
    versions = {number: version(number) for number in range(1, 7)}
    slow = PolicyEncoder(kept, [PolicyEncoding.DELTA], 0, b"")
    with slow, PolicyEncoder(kept, [PolicyEncoding.DELTA], 0, b"") as fast:
        slow.chunks(versions[1])
        for number in (2, 3, 4, 5):
            fast.chunks(versions[number])
            assert len(kept) <= 3
        assert sent(slow, versions[6])[1] == 1, "it was still there"
    for number in (7, 8, 9):
        kept.hold(version(number).as_base())
    assert kept.find(1, versions[1].digest) is None, "nobody holds it any more"


def test_more_holders_than_room_lose_the_oldest():
    kept = KeptPolicies(max_policies=2)
    versions = {number: version(number) for number in range(1, 5)}
    encoders = [PolicyEncoder(kept, [PolicyEncoding.DELTA], 0, b"") for _ in range(3)]
    for number, encoder in enumerate(encoders, 1):
        encoder.chunks(versions[number])
    assert len(kept) == 2
    assert [sent(encoder, versions[4])[1] for encoder in encoders] == [0, 0, 3]
