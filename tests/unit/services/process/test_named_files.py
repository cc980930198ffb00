"""Files that an option names: whatever they are, they neither hang a process, nor fill it, nor lose a device."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollcast.learner import main
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.saved import read_saved_policy
from rollcast.services.process.named_files import is_replaceable, open_regular_file, read_named_file, write_named_file
from rollcast.services.rendezvous import Rendezvous, read_rendezvous, write_rendezvous
from rollcast.services.rollouts.recording import read_rollouts
from rollcast.services.security.security import ClientSecurity, ServerTls
from rollcast.services.security.tokens import TokenFile
from rollcast.services.settings.file import read_settings
from rollcast.services.settings.new_files import check_new_file
from rollcast.tools.slurm.template import read_template

ENDLESS = Path("/dev/zero")


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def huge(tmp_path: Path) -> Path:
    path = tmp_path / "huge"
    path.touch()
    os.truncate(path, 1 << 40)
    return path


def test_a_file_is_read_up_to_its_limit(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_named_file(path, 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_named_file(path, 4)
    assert read_named_file(Path(os.devnull)) == b""
    with pytest.raises(OSError, match="it has more than 4,194,304 bytes"):
        read_named_file(huge(tmp_path))
    with pytest.raises(IsADirectoryError):
        read_named_file(tmp_path)


def test_a_file_a_device_and_a_pipe_that_is_read_are_written(tmp_path: Path, pipe: Path):
    content = 300_000 * b"x"
    path = tmp_path / "file"
    for written in (content, b"short"):
        write_named_file(path, written)
        assert path.read_bytes() == written
    write_named_file(Path(os.devnull), content)
    with ThreadPoolExecutor() as threads:
        reading = threads.submit(pipe.read_bytes)
        write_named_file(pipe, content)
        assert reading.result() == content


def test_no_writer_waits_without_end_for_who_reads_a_pipe(pipe: Path):
    with pytest.raises(OSError, match="no process reads it"):
        write_named_file(pipe, b"text", patience_s=0.1)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="no process reads it"):
            write_named_file(pipe, 300_000 * b"x", patience_s=0.1)
    finally:
        os.close(reading)


@pytest.mark.slow
def test_a_summary_for_a_pipe_without_a_reader_ends_with_an_error(
    pipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    given = ["record", "--env-id", "CartPole-v1", "--rollouts", "1", "--output", str(tmp_path / "recording")]
    assert main([*given, "--summary-json", str(pipe)]) == 2
    told = capsys.readouterr().err
    assert f"--summary-json: '{pipe}' cannot be written: no process reads it; expected a file, or a pipe" in told
    assert (tmp_path / "recording").is_file()


def test_what_a_shell_pipes_into_an_option_is_read():
    reading, writing = os.pipe()
    os.write(writing, b"seed: 3\n")
    os.close(writing)
    try:
        assert read_settings(Path(f"/dev/fd/{reading}"), expected="a file", advice="correct it") == {"seed": 3}
    finally:
        os.close(reading)


@pytest.mark.parametrize("is_written", [False, True])
def test_a_pipe_that_does_not_end_is_waited_for_in_vain(pipe: Path, is_written: bool):
    # both ends: a pipe that only this process holds
    writing = os.open(pipe, os.O_RDWR)
    try:
        if is_written:
            os.write(writing, b"begun")
        with pytest.raises(OSError, match=r"its content has not ended after 0\.05 s"):
            read_named_file(pipe, patience_s=0.05)
    finally:
        os.close(writing)


def test_a_pipe_without_a_writer_is_opened_at_once(pipe: Path):
    with pytest.raises(OSError, match=r"its content has not ended after 0\.05 s"):
        read_named_file(pipe, patience_s=0.05)
    with pytest.raises(OSError, match="it is not a regular file"):
        open_regular_file(pipe)


@pytest.mark.parametrize(
    "read",
    [
        TokenFile,
        lambda path: ClientSecurity(token_file=path).token_for("127.0.0.1:1"),
        lambda path: ClientSecurity(tls_ca=path).check_files(),
        lambda path: ServerTls(cert=path, key=path).check(),
        lambda path: read_settings(path, expected="a file", advice="correct it"),
        read_rendezvous,
        read_template,
    ],
    ids=["tokens", "token", "authorities", "certificate", "settings", "address", "template"],
)
def test_no_reader_of_a_small_file_reads_an_endless_one(read: Callable[[Path], object]):
    with pytest.raises(ConfigurationError, match="expected"):
        read(ENDLESS)


@pytest.mark.parametrize(
    "read", [read_saved_policy, lambda path: next(read_rollouts(path))], ids=["policy", "recording"]
)
def test_no_reader_of_a_large_file_waits_for_a_pipe(read: Callable[[Path], object], pipe: Path):
    with pytest.raises(ConfigurationError, match="it is not a regular file"):
        read(pipe)


def test_no_file_takes_the_place_of_a_device_or_of_an_open_file(pipe: Path, tmp_path: Path):
    opened = tmp_path / "stdout"
    opened.symlink_to("/proc/self/fd/1")
    for path in (pipe, opened, Path(os.devnull)):
        assert not is_replaceable(path)
        with pytest.raises(ConfigurationError, match=r"--output: .* is not a regular file"):
            check_new_file(path, "--output")
        check_new_file(path, "--summary-json", is_renamed=False)
    with pytest.raises(ConfigurationError, match=r"the address file .* cannot be written: it is not a regular file"):
        write_rendezvous(pipe, Rendezvous(address="node:1"))
    assert pipe.is_fifo()
    (tmp_path / "file").touch()
    linked = tmp_path / "link"
    linked.symlink_to("file")
    assert all(map(is_replaceable, (tmp_path / "file", linked, tmp_path / "new")))


def test_a_recording_replaces_no_pipe(pipe: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["record", "--env-id", "CartPole-v1", "--rollouts", "1", "--output", str(pipe), "--overwrite"]) == 2
    assert "is not a regular file; expected a new file" in capsys.readouterr().err
    assert pipe.is_fifo()
