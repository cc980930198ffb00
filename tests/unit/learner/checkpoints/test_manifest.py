import os
from pathlib import Path

import pytest

from rollcast.learner.checkpoints.manifest import MANIFEST_FILE, read_as_vouched_for, read_info, verify, write_manifest
from rollcast.services.errors import ConfigurationError, InvalidInputError
from tests.unit.learner.checkpoints.test_store import info, write_files


def written(directory: Path) -> Path:
    directory.mkdir()
    write_files(directory)
    write_manifest(directory, info(3, 1.5))
    return directory


def test_reads_back_what_was_written(tmp_path: Path):
    directory = written(tmp_path / "one")
    assert read_info(directory) == verify(directory) == info(3, 1.5)
    assert (directory / MANIFEST_FILE).read_text().startswith("rollcast-checkpoint 2 ")


def test_a_linked_file_is_not_read_again(tmp_path: Path):
    first = written(tmp_path / "one")
    second = tmp_path / "two"
    second.mkdir()
    os.link(first / "state.json", second / "state.json")
    (first / "state.json").write_text('{"a": 9}')  # both names
    write_manifest(second, info(4), previous=first)
    with pytest.raises(ConfigurationError, match=r"state\.json has changed"):
        verify(second)


def test_turns_unexpected_errors_of_reading_into_damage(tmp_path: Path):
    with (
        pytest.raises(ConfigurationError, match="is damaged: its content cannot be read: KeyError"),
        read_as_vouched_for(tmp_path),
    ):
        raise KeyError("a")
    with pytest.raises(InvalidInputError), read_as_vouched_for(tmp_path):
        raise InvalidInputError("ours")
