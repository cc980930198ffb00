import errno
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from rollcast.learner.durable.log import RolloutLog
from rollcast.learner.durable.records import Chunk
from rollcast.learner.durable.recovery import take_inventory
from rollcast.learner.durable.segments import SegmentWriter, segment_names, spare_paths
from rollcast.learner.queueing.queue import SliceName
from rollcast.services.errors import NotReadyError
from rollcast.services.rollouts.rollouts import NOT_BY_POLICY
from tests.processes import DEADLINE_S, wait_until
from tests.rollouts import always, assert_same_rollout, make_rollout
from tests.unit.learner.durable.logs import HEADER, NOTHING, append, open_log, recovered, sequences


class Disk:
    """A disk that can be held, and that can fail."""

    def __init__(self) -> None:
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.syncing = threading.Event()
        self.n_synced = 0
        self.error: OSError | None = None
        self.fails_at_write = False

    def make_writer(self, *arguments: Any) -> SegmentWriter:
        disk = self

        class Writer(SegmentWriter):
            def write(self, pieces: Sequence[Chunk]) -> None:
                if disk.error is not None and disk.fails_at_write:
                    super().write(pieces[:-2])
                    raise disk.error
                super().write(pieces)

            def commit(self) -> None:
                disk.syncing.set()
                assert disk.may_sync.wait(DEADLINE_S)
                if disk.error is not None:
                    raise disk.error
                super().commit()
                disk.n_synced += 1

        return Writer(*arguments)


@contextmanager
def opened(
    folder: Path, *, make_writer: Callable[..., SegmentWriter] = SegmentWriter, **options: Any
) -> Iterator[RolloutLog]:
    log = open_log(folder, **options)
    with patch("rollcast.learner.durable.files.SegmentWriter", make_writer):
        try:
            yield log
        finally:
            log.close()


@contextmanager
def appending(log: RolloutLog, *rollouts: Any) -> Iterator[list[Any]]:
    """Threads that append a rollout each; yields what they were answered so far."""
    answers: list[Any] = []

    def run(rollout: Any) -> None:
        try:
            answers.append(append(log, rollout))
        except NotReadyError as error:
            answers.append(error)

    threads = [threading.Thread(target=run, args=(rollout,)) for rollout in rollouts]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        for thread in threads:
            thread.join(DEADLINE_S)


def test_nothing_is_acknowledged_before_it_is_on_the_disk_and_what_comes_meanwhile_goes_together(tmp_path: Path):
    disk = Disk()
    with opened(tmp_path, make_writer=disk.make_writer) as log:
        disk.may_sync.clear()
        with appending(log, make_rollout(actor_id="first")) as first:
            assert disk.syncing.wait(DEADLINE_S)
            with appending(log, *(make_rollout(actor_id=f"a{index}") for index in range(5))) as others:
                wait_until(lambda: log.open.coverage().position == 6, "all of them to wait")
                assert not first
                assert not others
                disk.may_sync.set()
        assert first == [True]
        assert others == [True] * 5
        assert disk.n_synced == 2, "one for the first, one for the others"
    assert len(sequences(tmp_path)) == 6


def test_a_disk_that_hangs_is_told_and_a_stream_that_is_gone_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rollcast.services.process.waiting.LOOK_S", 0.01)
    monkeypatch.setattr("rollcast.learner.durable.log._HANGS_S", 0.0)
    disk = Disk()
    with opened(tmp_path, make_writer=disk.make_writer) as log:
        disk.may_sync.clear()
        with appending(log, make_rollout(actor_id="first")) as first:
            assert disk.syncing.wait(DEADLINE_S)
            assert f"the write-ahead log's disk, {tmp_path}, has not answered for 0 s" in log.problem()
            assert not append(log, make_rollout(), lambda: False)
            assert log.open.coverage().open_runs == ((0, 0),), "it is not accepted: a checkpoint need not have it"
            disk.may_sync.set()
        assert first == [True]
        assert append(log, make_rollout())
        assert not log.problem()
    assert len(sequences(tmp_path)) == 2


def test_an_error_that_nobody_thought_of_acknowledges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with opened(tmp_path) as log:
        with monkeypatch.context() as patch:
            patch.setattr(SegmentWriter, "commit", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                append(log, make_rollout())
        assert not log.open.coverage().open_runs


@pytest.mark.parametrize("fails_at_write", [True, False])
def test_a_disk_that_fails_acknowledges_nothing_and_the_log_goes_on_in_another_file(
    fails_at_write: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    disk = Disk()
    disk.fails_at_write = fails_at_write
    with opened(tmp_path, make_writer=disk.make_writer) as log:
        assert append(log, make_rollout(sequence=1))
        disk.error = OSError(errno.ENOSPC, "No space left on device")
        for _ in range(2):
            with pytest.raises(NotReadyError, match=f"{tmp_path} cannot take [0-9]+ bytes: No space left on device"):
                append(log, make_rollout(sequence=2))
        assert "No space left on device" in log.problem()
        assert [record.levelno for record in caplog.records] == [logging.ERROR], "said once"
        disk.error = None
        for sequence in (2, 3):
            assert append(log, make_rollout(sequence=sequence))
        assert not log.problem()
        assert log.open.coverage().open_runs == ((0, 0), (3, 4))
    assert sequences(tmp_path) == [1, 2, 3]
    n_segments = 2 if fails_at_write else 3
    assert len(segment_names(tmp_path)) == n_segments, "a segment that failed is not written to again"


def test_a_full_disk_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(tmp_path) as log:
        with monkeypatch.context() as patch:
            patch.setattr("rollcast.learner.durable.segments.os.posix_fallocate", full)
            with pytest.raises(NotReadyError, match="No space left on device"):
                append(log, make_rollout())
            assert not list(tmp_path.iterdir())
        assert append(log, make_rollout())
    assert sequences(tmp_path) == [1]


def name(sequence: int) -> SliceName:
    return SliceName("a", 1, sequence, 0, 2)


def test_what_two_checkpoints_have_is_removed_and_nothing_else(tmp_path: Path):
    with opened(tmp_path, segment_bytes=1) as log:
        for sequence in (1, 2, 3, 4):
            assert append(log, make_rollout(sequence=sequence))
        log.open.cover(name(1))
        log.open.cover(name(3))
        log.open.cover(SliceName("a", 1, 4, 0, 1))
        first = log.open.coverage()
        log.covered(first)
        assert len(segment_names(tmp_path)) == 4, "the checkpoint may turn out to be damaged"
        assert append(log, make_rollout(sequence=5))
        log.open.cover(name(5))
        log.covered(log.open.coverage())
        assert sequences(tmp_path) == [2, 4, 5]
        pieces = take_inventory(tmp_path, HEADER, first).found
        assert [(each.record.entry.sequence, each.spans) for each in pieces] == [
            (2, ((0, 2),)),
            (4, ((1, 2),)),
            (5, ((0, 2),)),
        ]
        log.covered(log.open.coverage())
        assert sequences(tmp_path) == [2, 4, 5], "the current one is written to"


def test_a_file_that_is_removed_is_used_again(tmp_path: Path):
    with opened(tmp_path, segment_bytes=4096) as log:
        sequence = 0
        while len(segment_names(tmp_path)) < 3:
            sequence += 1
            assert append(log, make_rollout(sequence=sequence))
        for covered in range(1, sequence):
            log.open.cover(name(covered))
        coverage = log.open.coverage()
        log.covered(coverage)
        log.covered(coverage)
        assert len(spare_paths(tmp_path)) == 2
        n_files = len(list(tmp_path.iterdir()))
        while len(spare_paths(tmp_path)) == 2:
            sequence += 1
            assert append(log, make_rollout(sequence=sequence))
        assert len(list(tmp_path.iterdir())) == n_files
    assert len(sequences(tmp_path, coverage)) == len(range(covered, sequence))


def test_a_log_on_a_full_disk_asks_for_a_checkpoint_and_uses_the_room_of_what_that_has(tmp_path: Path):
    asked = threading.Event()

    def checkpoint() -> None:
        for covered in range(1, sequence):
            log.open.cover(name(covered))
        log.covered(log.open.coverage())
        asked.set()

    def make_writer(folder: Path, *arguments: Any) -> SegmentWriter:
        if len(list(folder.glob("*.log"))) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return SegmentWriter(folder, *arguments)

    options: dict[str, Any] = {"segment_bytes": 4096, "max_bytes": 1 << 30, "make_writer": make_writer}
    with opened(tmp_path, ask_for_checkpoint=checkpoint, **options) as log:
        sequence = 1
        with pytest.raises(NotReadyError, match="No space left on device"):
            while append(log, make_rollout(sequence=sequence)):
                sequence += 1
        assert "No space left on device" in log.problem()
        assert asked.wait(DEADLINE_S)
        assert append(log, make_rollout(sequence=sequence))
        assert not log.problem()


def test_a_log_at_its_limit_asks_for_a_checkpoint_and_makes_streams_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rollcast.services.process.waiting.LOOK_S", 0.01)
    may_save, asked = threading.Event(), threading.Event()

    def checkpoint() -> None:
        asked.set()
        assert may_save.wait(DEADLINE_S)
        for sequence in range(1, 10):
            log.open.cover(name(sequence))
        log.covered(log.open.coverage())

    with opened(tmp_path, segment_bytes=4096, max_bytes=12288, ask_for_checkpoint=checkpoint) as log:
        sequence = 0
        while not log.problem():
            sequence += 1
            assert append(log, make_rollout(sequence=sequence))
        assert asked.wait(DEADLINE_S)
        assert "is at its limit and waits for a checkpoint: 16,384 bytes" in log.problem()
        with appending(log, make_rollout(sequence=sequence + 1)) as answers:
            may_save.set()
        assert answers == [True]
        assert not log.problem()


def test_a_log_that_is_closed_takes_nothing(tmp_path: Path):
    with opened(tmp_path) as log:
        assert append(log, make_rollout())
    assert not append(log, make_rollout(sequence=2), always)
    assert log.metrics()["durable/segments"] == 1
    assert sequences(tmp_path) == [1]


def test_the_versions_of_steps_come_back(tmp_path: Path):
    rollout = make_rollout(policy_version=3, policy_versions=np.array([[3, 4], [NOT_BY_POLICY, 5], [5, 5]]))
    log = open_log(tmp_path, take_inventory(tmp_path, HEADER, NOTHING))
    assert append(log, rollout)
    log.close()
    (piece,) = recovered(tmp_path)
    assert_same_rollout(piece.rollout, rollout)
