"""A log on a real file system that is small, or full."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcast.learner.durable.log import SEGMENT_BYTES, RolloutLog
from rollcast.learner.durable.segments import segment_names
from rollcast.services.errors import NotReadyError
from tests.chaos.disk import SmallDisk
from tests.rollouts import make_rollout
from tests.unit.learner.durable.logs import HEADER, append, sequences

DISK_BYTES = 8 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", DISK_BYTES) as disk:
        if not disk.is_mounted:
            pytest.skip("no file system can be mounted here, which needs root")
        yield disk


@pytest.fixture
def folder(disk: SmallDisk) -> Path:
    folder = disk.path / "log"
    folder.mkdir()
    return folder


def test_a_disk_smaller_than_a_segment_takes_smaller_ones(folder: Path):
    assert DISK_BYTES < SEGMENT_BYTES
    log = RolloutLog(folder, HEADER, max_bytes=1 << 30)
    for sequence in range(1, 4):
        assert append(log, make_rollout(sequence=sequence))
    log.close()
    (segment,) = segment_names(folder)
    assert segment.path(folder).stat().st_size <= DISK_BYTES // 8
    assert sequences(folder) == [1, 2, 3]


def test_a_disk_with_less_than_the_smallest_segment_takes_what_fits(folder: Path, disk: SmallDisk):
    disk.fill(leave_bytes=1 << 18)
    log = RolloutLog(folder, HEADER, max_bytes=1 << 30)
    assert append(log, make_rollout(sequence=1))
    log.close()
    assert sequences(folder) == [1]


def test_a_full_disk_is_told_with_what_is_free_and_what_is_needed(folder: Path, disk: SmallDisk):
    log = RolloutLog(folder, HEADER, max_bytes=1 << 30)
    disk.fill()
    with pytest.raises(NotReadyError) as refused:
        append(log, make_rollout())
    assert str(refused.value).startswith(f"the write-ahead log {folder} cannot take ")
    assert "No space left on device; expected " in str(refused.value)
    assert "bytes free on its disk for a segment of the log, not 0; free some space, or choose a --run-dir" in str(
        refused.value
    )
    disk.free()
    assert append(log, make_rollout())
    log.close()
    assert sequences(folder) == [1]
