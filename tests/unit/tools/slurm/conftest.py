"""Slurm's commands, played, and the folder of a run."""

from pathlib import Path

import pytest

from rollcast.tools.slurm.folder import SlurmFolder
from tests.fake_slurm import FakeSlurm


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Slurm's commands on PATH."""
    fake = FakeSlurm(tmp_path / "fake-slurm")
    monkeypatch.setenv("PATH", fake.path())
    return fake


@pytest.fixture
def folder(tmp_path: Path) -> SlurmFolder:
    return SlurmFolder(tmp_path / "run")
