from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.learner.durable.coverage import Coverage, OpenRollouts
from rollcast.learner.durable.records import (
    TAIL,
    LogEntry,
    decode_head,
    decode_tail,
    encode_record,
    record_bytes,
)
from rollcast.learner.durable.segments import SegmentName, SegmentWriter, decode_segment_head, encode_segment_head
from rollcast.learner.queueing.queue import SliceName
from rollcast.services.errors import RecordingError
from tests.rollouts import make_rollout
from tests.unit.learner.durable.logs import HEADER, entry_of, payload_of, sequences

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


def test_a_file_that_is_used_again_keeps_nothing_of_what_it_held(tmp_path: Path):
    head = encode_segment_head(HEADER)
    old, new = SegmentName.new(1), SegmentName.new(2)
    writer = SegmentWriter(tmp_path, old, head, 1 << 16, None)
    for sequence in (1, 2, 3):
        rollout = make_rollout(sequence=sequence)
        writer.write(encode_record(old.marker, entry_of(rollout)(sequence).encode(), payload_of(rollout)))
    writer.commit()
    writer.close()
    old.path(tmp_path).rename(old.spare_path(tmp_path))
    writer = SegmentWriter(tmp_path, new, head, 1 << 16, old.spare_path(tmp_path))
    rollout = make_rollout(sequence=9)
    writer.write(encode_record(new.marker, entry_of(rollout)(4).encode(), payload_of(rollout)))
    writer.commit()
    writer.close()
    assert sequences(tmp_path) == [9]
    assert not old.spare_path(tmp_path).exists()


@given(content=st.binary(max_size=200))
def test_what_is_no_head_of_a_segment_is_refused(content: bytes):
    with pytest.raises(RecordingError):
        decode_segment_head(content)


NOTHING = Coverage()


def test_coverage_survives_json():
    coverage = Coverage(position=9, open_runs=((2, 3), (7, 7)), open_spans={3: ((1, 2),)})
    assert Coverage.from_json(coverage.to_json()) == coverage
    assert [coverage.open_of(number, 2) for number in (1, 2, 3, 7, 8, 9)] == [
        (),
        ((0, 2),),
        ((1, 2),),
        ((0, 2),),
        (),
        ((0, 2),),
    ]
    assert not NOTHING.has(0, 0)


def name(sequence: int, start: int = 0, stop: int = 4) -> SliceName:
    return SliceName("a", 1, sequence, start, stop)


def test_a_rollout_is_covered_when_training_has_used_all_its_trajectories():
    rollouts = OpenRollouts()
    for number in range(3):
        rollouts.add(number, name(number), 4)
    rollouts.cover(name(1))
    rollouts.cover(name(2, 1, 3))
    coverage = rollouts.coverage()
    assert coverage == Coverage(position=3, open_runs=((0, 0), (2, 2)), open_spans={2: ((0, 1), (3, 4))})
    assert [coverage.has(number, number) for number in range(4)] == [False, True, False, False]
    rollouts.cover(name(2, 0, 1))
    rollouts.cover(name(2, 3, 4))
    rollouts.cover(name(0))
    assert rollouts.coverage() == Coverage(position=3, open_runs=(), open_spans={})
