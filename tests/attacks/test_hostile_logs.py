"""Hostile entries in the write-ahead log, digests and all: lost by name, or refused, in linear time."""

import json
import logging
import os
import re

import pytest

from rollcast.learner.durable.coverage import Coverage
from rollcast.learner.durable.reading import Flaw, SegmentReader
from rollcast.learner.durable.records import LogEntry, encode_record, encode_tail, inverted
from rollcast.learner.durable.segments import SegmentName, encode_segment_head
from rollcast.services.errors import RecordingError
from tests.rollouts import make_rollout
from tests.unit.learner.durable.logs import HEADER, entry_of, payload_of, recovered

NAME = SegmentName(1, bytes(range(16)))
ENTRY = entry_of(make_rollout())(0)


def write_segment(folder, content):
    NAME.path(folder).write_bytes(encode_segment_head(HEADER) + content)


def record(entry, **changes):
    return b"".join(encode_record(NAME.marker, entry, payload_of(make_rollout(**changes))))


def entry_with(**changes):
    return json.dumps({**json.loads(ENTRY.encode()), **changes}).encode()


@pytest.mark.parametrize(
    "filling",
    [
        NAME.marker,
        NAME.marker + (1 << 10).to_bytes(4, "little"),
        inverted(NAME.marker),
        encode_tail(NAME.marker, 100),
        bytes(16) + NAME.marker[:15],
    ],
)
def test_a_segment_is_read_a_few_times_whatever_is_in_it(tmp_path, monkeypatch, filling):
    write_segment(tmp_path, filling * ((1 << 18) // len(filling)))
    n_read, n_calls, pread = 0, 0, os.pread

    def counted(*arguments):
        nonlocal n_read, n_calls
        content = pread(*arguments)
        n_read, n_calls = n_read + len(content), n_calls + 1
        return content

    monkeypatch.setattr(os, "pread", counted)
    with SegmentReader(tmp_path, NAME) as reader:
        found = list(reader.scan(verify=True))
    assert len(found) <= 1
    # at each marker once, and there what a head may be
    n_places = (1 << 18) // 16
    assert n_calls < 3 * n_places
    assert n_read < 10 * (1 << 18) + n_places * (4096 + 1024)


def test_heads_that_are_all_damaged_are_one_flaw_up_to_the_last_tail(tmp_path):
    damaged = bytes(16) + record(ENTRY.encode())[16:]
    write_segment(tmp_path, damaged * 3 + bytes(500))
    with SegmentReader(tmp_path, NAME) as reader:
        (flaw,) = reader.scan(verify=True)
        assert isinstance(flaw, Flaw)
        assert (flaw.stop, flaw.is_torn) == (reader.n_bytes - 500, False)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"n_trajectories": 3}, r"are \(1, 2, 1\), but \(1, 3, 1\) in its entry"),
        ({"sequence": 2}, r"are \(1, 2, 1\), but \(2, 2, 1\) in its entry"),
        ({"policy_version": 9}, r"are \(1, 2, 1\), but \(1, 2, 9\) in its entry"),
        ({"n_envs": 1 << 40}, "cannot be recovered"),
        ({"actor_id": "b"}, "expected 'b'"),
    ],
)
def test_entries_that_contradict_their_rollouts(tmp_path, caplog, changes, match):
    write_segment(tmp_path, record(entry_with(**changes)) + record(entry_with(number=1, sequence=3), sequence=3))
    with caplog.at_level(logging.ERROR):
        assert [piece.rollout.sequence for piece in recovered(tmp_path)] == [3]
    (line,) = caplog.records
    assert re.search(match, line.message)


def test_open_trajectories_that_a_rollout_has_not(tmp_path, caplog):
    write_segment(tmp_path, record(ENTRY.encode()))
    assert recovered(tmp_path, Coverage(position=1, open_runs=((0, 0),), open_spans={0: ((1, 9),)})) == []
    assert "it has 2 trajectories, and the checkpoint lists [(1, 9)] as open" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 1 << 63},
        {"policy_version": 1 << 64},
        {"slot": 1 << 32},
        {"process_nonce": 1 << 64},
        {"replaced_nonces": [1 << 64]},
        {"replaced_nonces": "ab"},
        {"sequence": True},
        {"actor_id": 3},
        {"n_envs": 0},
    ],
)
def test_entries_of_numbers_that_nothing_has_room_for(changes):
    with pytest.raises(RecordingError, match="is not the entry of a rollout"):
        LogEntry.decode(entry_with(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"position": "3"},
        {"position": -1},
        {"position": 1 << 63},
        {"open_runs": [[1]]},
        {"open_runs": [[1, 2.5]]},
        {"open_spans": {"1": [[2, 2]]}},
        {"open_spans": {"1": [["a", "b"]]}},
        {"open_spans": {"x": []}},
    ],
)
def test_what_a_checkpoint_has_of_the_log(changes):
    with pytest.raises(ValueError, match=r"coverage of the log is|open_spans is|not enough values|invalid literal"):
        Coverage.from_json({"position": 3, "open_runs": [], "open_spans": {}, **changes})
