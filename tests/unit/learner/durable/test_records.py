import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.learner.durable.records import (
    TAIL,
    LogEntry,
    decode_head,
    decode_tail,
    encode_record,
    encode_tail,
    record_bytes,
)
from rollcast.services.errors import RecordingError
from tests.rollouts import make_rollout
from tests.unit.learner.durable.logs import entry_of, payload_of

MARKER = bytes(range(16))
ENTRY = entry_of(make_rollout(sequence=3))(8)


@given(content=st.binary(max_size=200) | st.text().map(str.encode) | st.just(b'{"number":1}') | st.just(b"[]"))
def test_refuses_bytes_that_are_no_entry(content: bytes):
    with pytest.raises(RecordingError):
        LogEntry.decode(content)


def test_a_record_is_decoded_as_it_was_encoded():
    payload = payload_of(make_rollout(sequence=3))
    content = b"".join(encode_record(MARKER, ENTRY.encode(), payload))
    assert len(content) == record_bytes(ENTRY.encode(), payload)
    head = decode_head(MARKER, content, 100)
    assert head is not None
    assert head.entry == ENTRY
    assert (head.start, head.end) == (100, 100 + len(content))
    assert content[head.payload_start - 100 : head.tail_start - 100] == b"".join(payload.pieces)
    assert decode_tail(MARKER, content[-TAIL.size :]) == len(content) - TAIL.size


@pytest.mark.parametrize("position", [0, 17, 30, 50, 70])
def test_a_damaged_head_is_no_head(position: int):
    content = bytearray(b"".join(encode_record(MARKER, ENTRY.encode(), payload_of(make_rollout()))))
    content[position] ^= 1
    assert decode_head(MARKER, bytes(content), 0) is None


def test_records_of_another_segment_are_none():
    content = b"".join(encode_record(MARKER, ENTRY.encode(), payload_of(make_rollout())))
    assert decode_head(bytes(16), content, 0) is None
    assert decode_tail(bytes(16), encode_tail(MARKER, 9)) is None
