import errno
import os

import pytest

from rollcast.learner.disk import explain_disk_error, free_bytes, write_whole


def test_a_file_takes_the_place_of_the_one_before(tmp_path):
    write_whole(tmp_path / "a", b"1")
    write_whole(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_file_that_cannot_be_written_leaves_the_one_before_and_nothing_else(tmp_path, monkeypatch, error):
    def fail(_descriptor):
        raise error

    write_whole(tmp_path / "a", b"1")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)) as raised:
        write_whole(tmp_path / "a", b"2")
    assert getattr(raised.value, "filename", str(tmp_path / "a")) == str(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_is_told_with_what_is_free(tmp_path):
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "gone" / "a"))
    message = explain_disk_error(error)
    assert message is not None
    assert message.startswith(f"{tmp_path}/gone/a cannot be written: No space left on device, ")
    assert "bytes are free; expected room for the file; free some space" in message


def test_a_disk_that_fails_is_told_and_other_errors_are_not():
    message = explain_disk_error(OSError(errno.EIO, "Input/output error"))
    assert message is not None
    assert message.startswith("a file cannot be written: Input/output error; expected a disk that can be written to")
    assert explain_disk_error(FileNotFoundError(errno.ENOENT, "No such file or directory", "a")) is None


def test_a_folder_that_is_not_there_says_nothing_of_its_disk(tmp_path):
    assert free_bytes(tmp_path / "gone") is None
    assert free_bytes(tmp_path) is not None
