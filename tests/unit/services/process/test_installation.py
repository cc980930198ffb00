import os
import sys
from pathlib import Path

import pytest

from rollcast.services.process import installation
from rollcast.services.process.installation import install_extra, typed


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shell in a folder whose `.venv` holds this Python, and whose PATH names nothing of it."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "rollcast", "pip"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(tmp_path)
    return programs


class TestTyped:
    def test_is_the_path_where_the_name_finds_nothing(self, shell: Path):
        assert typed("rollcast") == ".venv/bin/rollcast"

    def test_is_the_path_where_the_name_finds_another(self, shell: Path, tmp_path: Path, monkeypatch):
        (tmp_path / "rollcast").write_text("#!/bin/sh\n")
        (tmp_path / "rollcast").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert typed("rollcast") == ".venv/bin/rollcast"

    def test_is_the_name_where_that_finds_it(self, shell: Path, monkeypatch):
        monkeypatch.setenv("PATH", f"{os.defpath}:{shell}")
        assert typed("rollcast") == "rollcast"

    def test_is_the_whole_path_from_elsewhere(self, shell: Path, tmp_path: Path, monkeypatch):
        (tmp_path / "else where").mkdir()
        monkeypatch.chdir(tmp_path / "else where")
        assert typed("rollcast") == str(shell / "rollcast")

    def test_is_a_module_where_there_is_no_program(self, shell: Path):
        (shell / "rollcast").unlink()
        assert typed("rollcast") == f"{shell / 'python'} -m rollcast.learner"


class TestInstallExtra:
    def test_names_the_checkout(self, shell: Path, monkeypatch):
        root = Path(__file__).parents[4]
        assert install_extra("video") == f".venv/bin/pip install -e '{root}[video]'"
        monkeypatch.chdir(root)
        assert install_extra("video") == f"{shell / 'pip'} install -e '.[video]'"

    def test_names_the_package_where_it_is_installed_as_one(self, shell: Path, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(installation, "_SOURCES", tmp_path)
        assert install_extra("video") == ".venv/bin/pip install 'rollcast[video]'"
