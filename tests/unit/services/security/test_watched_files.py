from collections.abc import Callable
from pathlib import Path

import pytest

from rollcast.services.security.watched_files import WatchedFiles


def point_elsewhere(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize(
    "change",
    [lambda path: path.write_text("another length"), Path.unlink, point_elsewhere],
    ids=["text", "end", "link"],
)
def test_reports_each_change_once(change: Callable[[Path], object], tmp_path: Path):
    file, path = tmp_path / "file", tmp_path / "watched"
    for each in (file, tmp_path / "other"):
        each.write_text("one")
    path.symlink_to(file)
    watched = WatchedFiles((path,))
    assert not watched.have_changed()
    change(path)
    assert watched.have_changed()
    assert not watched.have_changed()


def test_reports_file_that_comes_back(tmp_path: Path):
    path = tmp_path / "watched"
    watched = WatchedFiles((path,))
    path.write_text("one")
    assert watched.have_changed()
