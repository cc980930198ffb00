import errno
import os
import re
import shlex
import subprocess
import sys
import types

import pytest

from rollcast.services.errors import ConfigurationError, LearnerUnreachableError
from rollcast.services.version import software_version
from rollcast.tools import cli
from tests.processes import DEADLINE_S


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["help"]])
def test_help_lists_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert cli.main(arguments) == 0
    listed = re.findall(r"^  ([\w-]+) ", capsys.readouterr().out, re.M)
    assert listed == list(cli.COMMANDS)


def test_version_is_printed(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rollcast {software_version()}\n"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["train", "--help-all"], ["completion", "bash"], ["recipes", "dqn-cartpole"]],
)
def test_a_reader_that_has_read_enough_ends_a_command_without_a_traceback(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
    assert (ended.value.code, capfd.readouterr().err) == (0, "")


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def full(_text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sys.stdout", types.SimpleNamespace(write=full))
    assert cli.main(["--version"]) == 1
    assert capsys.readouterr().err.startswith("rollcast: a file cannot be written: No space left on device")


def test_rejects_unknown_command_and_suggests_one(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["trian"]) == 2
    assert "there is no command 'trian'" in (message := capsys.readouterr().err)
    assert message.endswith("did you mean train?\n")


@pytest.mark.parametrize("option", ["-h", "--help", "--help-all"])
def test_help_of_the_only_replay_command_needs_no_word(option: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as short:
        cli.main(["replay", option])
    shown = capsys.readouterr().out
    with pytest.raises(SystemExit) as long:
        cli.main(["replay", "serve", option])
    assert (short.value.code, long.value.code) == (0, 0)
    assert shown == capsys.readouterr().out


def test_replay_needs_a_second_word(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["replay"]) == 2
    assert capsys.readouterr().err == "rollcast replay: replay needs a second word; expected rollcast replay serve\n"


def test_rejects_unknown_replay_command(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["replay", "help-me"]) == 2
    assert "there is no command replay 'help-me'; expected rollcast replay serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (ConfigurationError("seed is -1"), 2, "rollcast status: seed is -1\n"),
        (LearnerUnreachableError("no answer"), 1, "rollcast status: LearnerUnreachableError: no answer\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_error_of_a_command_decides_the_exit_code(
    error: BaseException,
    exit_code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def fail(settings: object, output: object) -> int:
        raise error

    monkeypatch.delenv("ROLLCAST_SETTINGS_EXIT_CODE", raising=False)
    monkeypatch.setattr("rollcast.tools.status.status", fail)
    assert cli.main(["status"]) == exit_code
    assert capsys.readouterr().err == message


def test_unexpected_os_error_is_raised(monkeypatch: pytest.MonkeyPatch):
    def fail(settings: object, output: object) -> int:
        raise FileNotFoundError("gone")

    monkeypatch.setattr("rollcast.tools.status.status", fail)
    with pytest.raises(FileNotFoundError):
        cli.main(["status"])


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("command", ["nonsense", "train --nonsense", "train --seed x"])
def test_the_exit_code_does_not_depend_on_stderr(command: str, stderr: str):
    line = f"exec {shlex.quote(sys.executable)} -m rollcast.learner {command} {stderr}"
    assert subprocess.run(["sh", "-c", line], check=False, timeout=DEADLINE_S).returncode == 2
