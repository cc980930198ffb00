from pathlib import Path

from actor.acting_loop import Heartbeat


def test_a_heartbeat_makes_its_file(tmp_path: Path):
    path = tmp_path / "heartbeat"
    Heartbeat(path).beat()
    assert path.is_file()


def test_without_a_path_there_is_nothing_to_touch():
    Heartbeat(None).beat()
