import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rollcast.services.errors import NotReadyError
from rollcast.services.streams.receiver import parse_request
from rollcast.services.wire.message_body import append_body
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


def test_finds_body_in_other_orders_of_the_fields():
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
def test_any_bytes_parse_as_protobuf_parses_them(noise, start):
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
