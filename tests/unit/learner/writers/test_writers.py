import errno
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rollcast.learner.writers import JsonLinesWriter, MetricsWriter, TensorBoardWriter, write_all

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

    def test_closing_leaves_no_thread(self, make, tmp_path):
        before = set(threading.enumerate())
        writer, _ = make(tmp_path)
        writer.write(1, {"x": 1.0})
        writer.close()
        assert set(threading.enumerate()) <= before


def test_a_json_line_is_there_at_once(tmp_path):
    writer, read = json_lines(tmp_path)
    writer.write(1, {"x": 1.0})
    assert len(read()) == 1
    writer.close()
    again, _ = json_lines(tmp_path)
    again.write(2, {"x": 2.0})
    again.close()
    assert [env_steps for _, env_steps, _ in read()] == [1, 2]


def test_all_writers_get_the_same(tmp_path):
    pairs = [json_lines(tmp_path), tensorboard(tmp_path)]
    write_all([writer for writer, _ in pairs], 3, {"x": 1.5})
    for writer, read in pairs:
        writer.close()
        assert read() == [(1234.5, 3, {"x": 1.5})]


def test_one_that_cannot_write_is_logged_and_the_others_write(tmp_path, caplog):
    class Full:
        def write(self, env_steps, metrics):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            pass

    writer, read = json_lines(tmp_path)
    write_all([Full(), writer], 3, {"x": 1.5})
    writer.close()
    assert read() == [(1234.5, 3, {"x": 1.5})]
    assert "the metrics after 3 env steps are not written: [Errno 28] No space left" in caplog.text


def test_tensorboard_begins_another_file_when_one_cannot_be_written(tmp_path, monkeypatch):
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer, _ = tensorboard(tmp_path)
    writer.write(1, {"x": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(EventFileWriter, "add_event", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            writer.write(2, {"x": 2.0})
    threads = threading.active_count()
    writer.write(3, {"x": 3.0})
    writer.close()
    assert threading.active_count() <= threads
    files = list((tmp_path / "tensorboard").iterdir())
    assert files


def test_tensorboard_is_imported_when_it_is_needed():
    program = (
        "import sys, pathlib; from rollcast.learner.writers.tensorboard import TensorBoardWriter; "
        "TensorBoardWriter(pathlib.Path('nowhere')).close(); "
        "assert 'tensorboard' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert not Path("nowhere").exists()
