"""Changes of files are detected."""

from pathlib import Path

import pytest

from rollcast.services.security.watched_files import WatchedFiles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "watched"
    path.write_text("one")
    return path


def test_unchanged_files_have_not_changed(path: Path):
    watched = WatchedFiles((path,))
    assert not watched.have_changed()


def test_reports_each_change_once(path: Path):
    watched = WatchedFiles((path,))
    path.write_text("another length")
    assert watched.have_changed()
    assert not watched.have_changed()


def test_reports_file_that_goes_and_comes_back(path: Path):
    watched = WatchedFiles((path,))
    path.unlink()
    assert watched.have_changed()
    path.write_text("one")
    assert watched.have_changed()


def test_reports_symbolic_link_that_points_elsewhere(path: Path, tmp_path: Path):
    link, other = tmp_path / "link", tmp_path / "other"
    other.write_text("one")
    link.symlink_to(path)
    watched = WatchedFiles((link,))
    link.unlink()
    link.symlink_to(other)
    assert watched.have_changed()
