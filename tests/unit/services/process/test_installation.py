import os
import sys
import tomllib
from pathlib import Path

import pytest

from rollcast.services.errors import ConfigurationError
from rollcast.services.process import installation
from rollcast.services.process.installation import EXTRAS, extra_with, install_extra, require_extra, typed, typed_again


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

    def test_has_the_path_of_imports_before_it_when_a_name_needs_an_import(self, shell: Path, monkeypatch):
        monkeypatch.setenv("PATH", f"{os.defpath}:{shell}")
        monkeypatch.setenv("PYTHONPATH", "my code")
        assert typed_again("CartPole-v1", "mine:make") == "PYTHONPATH='my code' rollcast"
        assert typed_again("CartPole-v1", "auto") == "rollcast"
        monkeypatch.delenv("PYTHONPATH")
        assert typed_again("mine:make") == "rollcast"


class TestInstallExtra:
    def test_names_the_checkout(self, shell: Path, monkeypatch):
        root = Path(__file__).parents[4]
        assert install_extra("video") == f".venv/bin/pip install -e '{root}[video]'"
        monkeypatch.chdir(root)
        assert install_extra("video") == f"{shell / 'pip'} install -e '.[video]'"

    @pytest.mark.parametrize(
        ("origin", "requirement"),
        [
            (None, "rollcast[video]"),
            (
                '{"url": "file:///wheels/rollcast-1.whl", "archive_info": {}}',
                "rollcast[video] @ file:///wheels/rollcast-1.whl",
            ),
            (
                '{"url": "https://a.test/r.git", "vcs_info": {"vcs": "git"}}',
                "rollcast[video] @ git+https://a.test/r.git",
            ),
        ],
    )
    def test_names_where_an_installed_package_came_from(
        self, shell: Path, tmp_path: Path, monkeypatch, origin, requirement
    ):
        class Installed:
            def read_text(self, name):
                assert name == "direct_url.json"
                return origin

        monkeypatch.setattr(installation, "_SOURCES", tmp_path)
        monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
        assert install_extra("video") == f".venv/bin/pip install '{requirement}'"

    def test_names_the_build_in_an_image(self, shell: Path, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        (tmp_path / "install-extra").write_text("docker build --build-arg EXTRAS=torch,{extra} .\n")
        assert install_extra("video") == "docker build --build-arg EXTRAS=torch,video ."


class TestRequireExtra:
    def test_accepts_an_extra_that_is_installed(self):
        require_extra("learner", "rollcast train")

    def test_names_everything_that_is_missing_and_the_command(self, monkeypatch):
        for module in ("torch", "rich"):
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigurationError) as caught:
            require_extra("learner", "rollcast train")
        assert str(caught.value) == (
            "rollcast train needs torch, rich, which this Python does not have; expected the extra 'learner'; "
            f"install it: {install_extra('learner')}"
        )

    def test_looks_for_the_modules_that_are_named_only(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        require_extra("learner", "rollcast certs", "cryptography")

    def test_rejects_a_folder_that_only_has_the_name(self, tmp_path: Path, monkeypatch):
        (tmp_path / "moviepy_of_mine").mkdir()
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ConfigurationError, match="a video needs moviepy_of_mine, which"):
            require_extra("video", "a video", "moviepy_of_mine")


class TestExtras:
    def test_are_those_of_pyproject(self):
        project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
        assert EXTRAS.keys() == project["optional-dependencies"].keys()

    @pytest.mark.parametrize(
        ("module", "extra"), [("torch", "torch"), ("rich", "top"), ("pygame", "video"), ("os", None)]
    )
    def test_the_smallest_one_with_a_module_is_found(self, module: str, extra: str | None):
        assert extra_with(module) == extra
