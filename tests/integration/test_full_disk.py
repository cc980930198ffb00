"""Commands on a real disk that is full: they say what is missing, and leave nothing half written."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcast.learner.runs.directory import RunDirectory
from tests.chaos.disk import SmallDisk
from tests.processes import completed, refused, rollcast

TRAINING = ("train", "--actor-kind", "sequential", "--n-actors", 1, "--hidden-sizes", "[8]", "--total-steps", 600)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    """Has a run in the folder `run`, and no byte left."""
    with SmallDisk(tmp_path_factory.mktemp("full") / "disk", 32 << 20) as disk:
        if not disk.is_mounted:
            pytest.skip("no file system can be mounted here, which needs root")
        completed(*TRAINING, "--run-dir", disk.path / "run")
        disk.fill()
        yield disk


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def assert_says_so(command: str, refused, path: Path) -> None:
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert f"{command}: {path} cannot be written: No space left on device, 0 bytes are free; expected" in refused.stderr


def test_new_run_ends_without_a_traceback_and_leaves_no_files(disk):
    path = disk.path / "new"
    refused = rollcast(*TRAINING, "--run-dir", path)
    assert_says_so("rollcast train", refused, path / "settings.yaml")
    assert not path.exists()


def test_failed_change_of_settings_keeps_the_old_ones(disk):
    run = RunDirectory(disk.path / "run")
    settings, files = run.read_settings(), files_of(run.path)
    refused = rollcast("train", "--resume", run.path, "--total-steps", 1200)
    assert_says_so("rollcast train", refused, run.settings_path)
    assert run.read_settings() == settings
    assert files_of(run.path) == files


def test_unchanged_resumed_run_ends_well(disk):
    """The run has ended before. A run that had not would try to write again until there is room."""
    completed("train", "--resume", disk.path / "run")


def test_writes_all_certificates_or_none(disk):
    said = refused("certs", disk.path / "certs")
    assert "No space left on device" in said
    assert files_of(disk.path / "certs") == set()
