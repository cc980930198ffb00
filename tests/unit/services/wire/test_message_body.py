import pytest
import xxhash
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rollcast.services.errors import NotReadyError
from rollcast.services.rollouts.service import parse_request
from rollcast.services.wire.message_body import append_body
from rollcast.services.wire.seal import parse_sealed, seal
from rollcast.v1 import rollout_pb2

FRAME = rollout_pb2.StreamRolloutsRequest(frame=rollout_pb2.TensorFrame(sequence=1, offset=2))


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_the_bytes_are_those_of_protobuf(pieces):
    body = b"".join(pieces)
    serialized = append_body(FRAME.SerializeToString(), [memoryview(piece) for piece in pieces], len(body))
    expected = rollout_pb2.StreamRolloutsRequest(frame=FRAME.frame, body=body)
    assert serialized == expected.SerializeToString()
    request, found = parse_request(serialized)
    assert request.frame == FRAME.frame
    assert found == body


def test_the_body_is_not_copied():
    serialized = append_body(FRAME.SerializeToString(), [memoryview(b"body")], 4)
    assert parse_request(serialized).body.obj is serialized


def test_other_orders_of_the_fields_are_understood_too():
    """Protobuf lets a writer put fields in any order, repeat them, and add unknown ones."""
    frame, body = FRAME.SerializeToString(), rollout_pb2.StreamRolloutsRequest(body=b"body").SerializeToString()
    unknown = b"\xa2\x06\x01x"  # field 100
    for serialized in (
        body + frame,
        frame + rollout_pb2.StreamRolloutsRequest(body=b"old").SerializeToString() + body,
        unknown + frame + body,
        frame + unknown + body,
        frame + body + unknown,
        frame + frame + body,
    ):
        request, found = parse_request(serialized)
        assert request.frame == FRAME.frame
        assert found == b"body"


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x12", b"\x1a", FRAME.SerializeToString()]))
def test_whatever_comes_is_parsed_as_protobuf_parses_it(noise, start):
    serialized = start + noise
    try:
        expected = rollout_pb2.StreamRolloutsRequest.FromString(serialized)
    except DecodeError:
        with pytest.raises(DecodeError):
            parse_request(serialized)
        return
    try:
        request, body = parse_request(serialized)
    except NotReadyError:
        assert expected.digest, "nothing is damaged that has no digest"
        return
    assert body == expected.body
    request.ClearField("body")
    expected.ClearField("body")
    assert request == expected


def sealed(pieces: list[bytes]) -> bytes:
    """A frame as actors send it."""
    views = [memoryview(piece) for piece in pieces]
    return append_body(seal(FRAME.SerializeToString(), views), views, sum(map(len, pieces)))


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_what_is_sealed_is_read(pieces):
    request, body = parse_request(sealed(pieces))
    assert request.frame == FRAME.frame
    assert body == b"".join(pieces)


@pytest.mark.parametrize("pieces", [[], [b"some", b" bytes of tensors"]], ids=["no body", "a body"])
def test_a_flipped_bit_is_noticed_or_takes_the_digest_away(pieces):
    serialized = sealed(pieces)
    refused = 0
    for bit in range(8 * len(serialized)):
        damaged = bytearray(serialized)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            request, _ = parse_request(bytes(damaged))
        except (NotReadyError, DecodeError):
            refused += 1
        else:
            assert not request.digest, "a stream whose first message had one refuses this"
    assert refused > 7 * len(serialized)


def test_a_digest_is_of_the_whole_message():
    body = b"body"
    head = FRAME.SerializeToString()
    digest = xxhash.xxh3_64_intdigest(head + body)
    written = rollout_pb2.StreamRolloutsRequest(frame=FRAME.frame, digest=digest, body=body).SerializeToString()
    assert written == sealed([body]), "any protobuf library can write it"


def test_what_only_looks_like_a_digest_is_none():
    inline = rollout_pb2.StreamRolloutsRequest(failure=rollout_pb2.ActorFailure(message="q12345678"))
    assert inline.SerializeToString()[-9] == ord("q")
    assert parse_request(inline.SerializeToString()).request == inline


ANSWER = rollout_pb2.StreamRolloutsResponse(acknowledged_sequence=3, credit_sequence=300)


def test_a_sealed_answer_is_what_protobuf_writes():
    sealed = seal(ANSWER.SerializeToString())
    answer = parse_sealed(rollout_pb2.StreamRolloutsResponse, sealed)
    assert answer.SerializeToString() == sealed
    assert answer.credit_sequence == 300
    assert parse_sealed(rollout_pb2.StreamRolloutsResponse, ANSWER.SerializeToString()) == ANSWER


def test_no_flipped_bit_of_a_sealed_answer_goes_unnoticed():
    sealed = seal(ANSWER.SerializeToString())
    for bit in range(8 * len(sealed)):
        damaged = bytearray(sealed)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            answer = parse_sealed(rollout_pb2.StreamRolloutsResponse, bytes(damaged))
        except (NotReadyError, DecodeError):
            continue
        # the tag of the digest alone: the reader of a stream that began with one asks for one in every message
        assert not answer.digest
