import os
import threading
from pathlib import Path

import pytest

from rollcast.actor.acting.heartbeat import Heartbeat
from rollcast.services.errors import ConfigurationError
from tests.processes import wait_until


def make_old(path: Path) -> None:
    os.utime(path, (0, 0))


def test_keeps_its_file_young_during_a_step_that_takes_long(tmp_path: Path):
    path = tmp_path / "heartbeat"
    with Heartbeat(path, patience_s=60.0):
        make_old(path)
        wait_until(lambda: path.stat().st_mtime > 0, "the next touch")


def test_stops_touching_when_the_acting_thread_hangs(tmp_path: Path):
    path = tmp_path / "heartbeat"
    path.touch()
    make_old(path)
    # the last beat is longer ago than it may be
    Heartbeat(path, patience_s=-1.0).touch_if_alive()
    assert path.stat().st_mtime == 0
    Heartbeat(path, patience_s=60.0).touch_if_alive()
    assert path.stat().st_mtime > 0


def test_says_that_its_file_cannot_be_touched(tmp_path: Path):
    with (
        pytest.raises(
            ConfigurationError, match=r"heartbeat_file '.*nowhere/heartbeat'.*No such file.*--heartbeat-file"
        ),
        Heartbeat(tmp_path / "nowhere" / "heartbeat", patience_s=60.0),
    ):
        pass


def test_without_a_path_starts_no_thread():
    with Heartbeat(None, patience_s=60.0) as heartbeat:
        heartbeat.beat()
        assert not [thread for thread in threading.enumerate() if thread.name == "rollcast-heartbeat"]
