from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.learner.durable.records import encode_record
from rollcast.learner.durable.segments import SegmentName, SegmentWriter, decode_segment_head, encode_segment_head
from rollcast.services.errors import RecordingError
from tests.rollouts import make_rollout
from tests.unit.learner.durable.logs import HEADER, entry_of, payload_of, sequences

N_ROLLOUTS = 3


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
