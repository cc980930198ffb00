import contextlib
import errno
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollcast.learner.writers.json_lines import JsonLinesWriter
from rollcast.learner.writers.tensorboard import TensorBoardWriter
from rollcast.learner.writers.writer import MetricsWriter, close_all, write_all
from tests.chaos.disk import SmallDisk

Records = list[tuple[float, int, dict[str, float | None]]]


def read_json_lines(path: Path) -> Records:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [(record.pop("time"), record.pop("env_steps"), record) for record in records]


def read_tensorboard(path: Path) -> Records:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    (file,) = path.iterdir()
    return [
        (event.wall_time, event.step, {value.tag: value.simple_value for value in event.summary.value})
        for event in LegacyEventFileLoader(str(file)).Load()
        if event.summary.value
    ]


def json_lines(path: Path) -> tuple[MetricsWriter, Callable[[], Records]]:
    file = path / "metrics.jsonl"
    return JsonLinesWriter(file, clock=lambda: 1234.5), lambda: read_json_lines(file)


def tensorboard(path: Path) -> tuple[MetricsWriter, Callable[[], Records]]:
    folder = path / "tensorboard"
    return TensorBoardWriter(folder, clock=lambda: 1234.5), lambda: read_tensorboard(folder)


@pytest.mark.parametrize("make", [json_lines, tensorboard])
class TestEveryWriter:
    def test_records_come_back_in_order(self, make, tmp_path):
        writer, read = make(tmp_path)
        writer.write(10, {"learner/loss": 0.5, "train/mean_return": 7.0})
        writer.write(20, {"learner/loss": 0.25})
        writer.close()
        assert read() == [
            (1234.5, 10, {"learner/loss": 0.5, "train/mean_return": 7.0}),
            (1234.5, 20, {"learner/loss": 0.25}),
        ]

    def test_numbers_that_are_none_are_kept(self, make, tmp_path):
        writer, read = make(tmp_path)
        writer.write(1, {"nan": math.nan, "infinite": math.inf})
        writer.close()
        [(_, _, metrics)] = read()
        assert metrics.keys() == {"nan", "infinite"}
        assert all(value is None or not math.isfinite(value) for value in metrics.values())

    def test_closing_twice_and_writing_after(self, make, tmp_path):
        writer, _ = make(tmp_path)
        writer.write(1, {"x": 1.0})
        writer.close()
        writer.close()
        with pytest.raises(ValueError, match="closed"):
            writer.write(2, {"x": 1.0})


def test_a_json_line_is_there_at_once(tmp_path):
    writer, read = json_lines(tmp_path)
    writer.write(1, {"x": 1.0})
    assert len(read()) == 1
    writer.close()
    again, _ = json_lines(tmp_path)
    again.write(2, {"x": 2.0})
    again.close()
    assert [env_steps for _, env_steps, _ in read()] == [1, 2]


def test_one_that_cannot_write_is_logged_and_the_others_write(tmp_path, caplog):
    class Full:
        def write(self, env_steps, metrics):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            pass

    pairs = [json_lines(tmp_path), tensorboard(tmp_path)]
    write_all([Full(), *(writer for writer, _ in pairs)], 3, {"x": 1.5})
    for writer, read in pairs:
        writer.close()
        assert read() == [(1234.5, 3, {"x": 1.5})]
    assert "the metrics after 3 env steps are not written: [Errno 28] No space left" in caplog.text


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "small", 1 << 20) as disk:
        if not disk.is_mounted:
            pytest.skip("no file system can be mounted here, which needs root")
        yield disk


@pytest.mark.parametrize("make", [json_lines, tensorboard])
def test_records_are_whole_while_the_disk_is_full_and_complete_once_it_is_not(make, disk: SmallDisk):
    writer, read = make(disk.path)
    writer.write(1, {"x": 1.0})
    disk.fill()
    # the page that the file has still takes some of them
    for step in range(2, 400):
        with contextlib.suppress(OSError):
            writer.write(step, {"x": float(step), "of many digits": math.pi})
        if step % 50 == 0:
            assert [env_steps for _, env_steps, _ in read()] == list(range(1, len(read()) + 1))
    assert 1 <= len(read()) < 399
    with pytest.raises(OSError, match="No space left"):
        writer.write(400, {"x": 400.0})
    disk.free()
    writer.write(401, {"x": 401.0})
    writer.close()
    assert [env_steps for _, env_steps, _ in read()] == list(range(1, 402))


def test_writers_that_cannot_write_their_rest_are_closed_and_end_nothing(disk: SmallDisk, caplog):
    (disk.path / "full").mkdir()
    full, _ = json_lines(disk.path / "full")
    other, read = json_lines(disk.path)
    disk.fill()
    while "not written" not in caplog.text:
        write_all([full], 1, {"x": 1.0})
    caplog.clear()
    close_all([full, other])
    assert "the last metrics are not written: [Errno 28] No space left on device: " in caplog.text
    assert read() == []
    full.close()


def test_tensorboard_shows_histograms(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import HISTOGRAMS, EventAccumulator

    writer = TensorBoardWriter(tmp_path)
    jsonl, read = json_lines(tmp_path)
    for env_steps, counts in ((10, [4, 0, 2, 0]), (20, [0, 0, 0, 3]), (30, [0, 0])):
        write_all([writer, jsonl], env_steps, {"a": 1.0}, {"queue/policy_lag": counts})
    close_all([writer, jsonl])
    shown = EventAccumulator(str(tmp_path), size_guidance={HISTOGRAMS: 0}).Reload().Histograms("queue/policy_lag")
    assert [(event.step, event.histogram_value.bucket) for event in shown] == [(10, [4, 0, 2]), (20, [0, 0, 0, 3])]
    assert shown[0].histogram_value.bucket_limit == [0.5, 1.5, 2.5]
    assert (shown[1].histogram_value.min, shown[1].histogram_value.max, shown[1].histogram_value.num) == (3, 3, 3)
    assert len(read()) == 3, "others have their record without them"


def test_tensorboard_is_imported_when_it_is_needed():
    program = (
        "import sys, pathlib; from rollcast.learner.writers.tensorboard import TensorBoardWriter; "
        "TensorBoardWriter(pathlib.Path('nowhere')).close(); "
        "assert 'tensorboard' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert not Path("nowhere").exists()
