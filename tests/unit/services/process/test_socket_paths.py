import tempfile
from pathlib import Path

import pytest

from rollcast.services.errors import ConfigurationError
from rollcast.services.process.socket_paths import short_temporary_paths


@pytest.fixture
def at(tmp_path, monkeypatch):
    """Sets the folder for temporary files to one with a name of so many characters."""

    def put(n_characters):
        folder = tmp_path / "/".join(["x" * 40] * 4)
        folder = type(tmp_path)(str(folder)[: n_characters - 1] + "y")
        folder.mkdir(parents=True)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return str(folder)

    return put


def test_a_short_folder_stays_what_it_is():
    usual = tempfile.gettempdir()
    with short_temporary_paths():
        assert tempfile.gettempdir() == usual


def test_in_the_body_a_long_folder_is_replaced(at, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    usual = at(110)
    with short_temporary_paths(), tempfile.TemporaryDirectory() as folder:
        assert folder.startswith("/tmp/")
        assert len(folder) < 70
    assert tempfile.gettempdir() == usual


def test_a_folder_that_is_not_utf8_is_replaced(monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = tempfile.mkdtemp(b"\xff".decode("utf-8", "surrogateescape"), dir="/tmp")
    monkeypatch.setattr(tempfile, "tempdir", folder)
    try:
        with short_temporary_paths():
            assert tempfile.gettempdir() == "/tmp"
    finally:
        Path(folder).rmdir()


def test_the_folder_of_the_session_goes_before_those_of_the_machine(at, monkeypatch):
    at(110)
    with tempfile.TemporaryDirectory(dir="/tmp") as own:
        monkeypatch.setenv("XDG_RUNTIME_DIR", own)
        with short_temporary_paths():
            assert tempfile.gettempdir() == own


def test_without_a_shorter_folder_the_variable_to_set_is_named(at, monkeypatch):
    usual = at(110)
    monkeypatch.setattr("os.access", lambda folder, mode: folder == usual)
    with pytest.raises(ConfigurationError, match=r"'.*y', which is .*; expected at most 70 bytes of UTF-8; set TMPDIR"):
        with short_temporary_paths():
            pytest.fail("nothing can be made here")
