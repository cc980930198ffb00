import pytest
import xxhash
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rollcast.services.errors import DamagedMessageError, NotReadyError
from rollcast.services.streams.receiver import parse_request
from rollcast.services.wire.message_body import append_body
from rollcast.services.wire.seal import StreamSeals, parse_sealed, seal
from rollcast.v1 import rollout_pb2
from tests.play_messages import hello

FRAME = rollout_pb2.StreamRolloutsRequest(frame=rollout_pb2.TensorFrame(sequence=1, offset=2))
ANSWER = rollout_pb2.StreamRolloutsResponse(acknowledged_sequence=3, credit_sequence=300)


def sealed(pieces: list[bytes]) -> bytes:
    """A frame as actors send it."""
    views = [memoryview(piece) for piece in pieces]
    return append_body(seal(FRAME.SerializeToString(), views), views, sum(map(len, pieces)))


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_sealed_message_is_read(pieces):
    request, body = parse_request(sealed(pieces))
    assert request.frame == FRAME.frame
    assert body == b"".join(pieces)


def read_request(serialized: bytes) -> rollout_pb2.StreamRolloutsRequest:
    return parse_request(serialized).request


def read_answer(serialized: bytes) -> rollout_pb2.StreamRolloutsResponse:
    return parse_sealed(rollout_pb2.StreamRolloutsResponse, serialized)


@pytest.mark.parametrize(
    ("read", "serialized"),
    [
        (read_request, sealed([])),
        (read_request, sealed([b"some", b" bytes of tensors"])),
        (read_answer, seal(ANSWER.SerializeToString())),
    ],
    ids=["no body", "a body", "an answer"],
)
def test_flipped_bit_is_detected_or_removes_the_digest(read, serialized):
    refused = 0
    for bit in range(8 * len(serialized)):
        damaged = bytearray(serialized)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            message = read(bytes(damaged))
        except (NotReadyError, DecodeError):
            refused += 1
        else:
            # the tag of the digest alone: the reader of a stream that began with one asks for one in every message
            assert not message.digest
    assert refused > 7 * len(serialized)


def test_a_digest_is_of_the_whole_message():
    body = b"body"
    head = FRAME.SerializeToString()
    digest = xxhash.xxh3_64_intdigest(head + body)
    written = rollout_pb2.StreamRolloutsRequest(frame=FRAME.frame, digest=digest, body=body).SerializeToString()
    assert written == sealed([body]), "any protobuf library can write it"


def test_bytes_that_only_look_like_a_digest_are_ignored():
    inline = rollout_pb2.StreamRolloutsRequest(failure=rollout_pb2.ActorFailure(message="q12345678"))
    assert inline.SerializeToString()[-9] == ord("q")
    assert parse_request(inline.SerializeToString()).request == inline


def test_a_sealed_answer_is_what_protobuf_writes():
    sealed = seal(ANSWER.SerializeToString())
    answer = parse_sealed(rollout_pb2.StreamRolloutsResponse, sealed)
    assert answer.SerializeToString() == sealed
    assert answer.credit_sequence == 300
    assert parse_sealed(rollout_pb2.StreamRolloutsResponse, ANSWER.SerializeToString()) == ANSWER


class TestStreamSeals:
    MESSAGE = ANSWER.SerializeToString()
    FIRST = hello().SerializeToString()

    def begun(self, first: bytes) -> StreamSeals:
        seals = StreamSeals()
        assert seals.open(first) == self.MESSAGE
        return seals

    def test_a_sealed_stream_is_opened(self):
        seals = self.begun(seal(self.MESSAGE))
        assert seals.is_sealed
        assert seals.open(seal(b"")) == b""
        assert seals.open(seal(self.MESSAGE)) == self.MESSAGE

    def test_every_flipped_bit_is_detected(self):
        sealed = seal(self.MESSAGE)
        seals = self.begun(sealed)
        for bit in range(8 * len(sealed)):
            damaged = bytearray(sealed)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(DamagedMessageError):
                seals.open(bytes(damaged))

    @pytest.mark.parametrize("message", [MESSAGE, b"", b"q", seal(MESSAGE)[:-1], seal(MESSAGE) + b"\0"])
    def test_every_message_of_a_sealed_stream_needs_a_digest(self, message):
        seals = self.begun(seal(self.MESSAGE))
        with pytest.raises(DamagedMessageError):
            seals.open(message)

    @pytest.mark.parametrize("message", [MESSAGE, b"", b"\xff" * 20, seal(MESSAGE), seal(MESSAGE)[:-1] + b"x"])
    def test_a_stream_without_them_is_not_checked(self, message):
        seals = self.begun(self.MESSAGE)
        assert not seals.is_sealed
        assert seals.open(message) == message

    def test_nearly_every_flipped_bit_of_the_first_message_is_detected(self):
        sealed = seal(self.FIRST)
        n_open = 0
        for bit in range(8 * len(sealed)):
            damaged = bytearray(sealed)
            damaged[bit // 8] ^= 1 << bit % 8
            try:
                seals = StreamSeals()
                assert seals.open(bytes(damaged)) == damaged
                assert not seals.is_sealed
                n_open += 1
            except DamagedMessageError:
                pass
        assert 8 <= n_open <= 16, "the bits of the digest's tag, and few of the first field's tag and length"

    def test_bytes_that_only_look_like_a_digest_are_none(self):
        failure = rollout_pb2.StreamRolloutsRequest(failure=rollout_pb2.ActorFailure(message="q12345678"))
        for message in (failure.SerializeToString(), b"q12345678"[:8]):
            seals = StreamSeals()
            assert seals.open(message) == message
            assert not seals.is_sealed
