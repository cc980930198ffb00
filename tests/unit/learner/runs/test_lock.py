"""Tests of locks of folders, on file systems that lock files and on one that locks none."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollcast.learner.runs.lock import is_locked, lock
from tests.processes import DEADLINE_S, ROOT, environment, wait_until

# Holds the lock of a folder until its standard input ends.
_HOLDER = """
import errno, fcntl, logging, sys
from pathlib import Path
logging.basicConfig()
def refuse(descriptor, kind):
    raise OSError(errno.ENOLCK, "No locks available")
if sys.argv[2] == "without-locks":
    fcntl.flock = refuse
import rollcast.learner.runs.lock as module
module._BEAT_S = 0.05
with module.lock(Path(sys.argv[1])) as is_ours:
    print(is_ours, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["with-locks", "without-locks"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without-locks":
        refuse_locks(monkeypatch)
    return request.param


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_locks(monkeypatch)


def refuse_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


@contextlib.contextmanager
def holder(folder: Path, file_system: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has locked a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(folder), file_system],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        try:
            yield process
        finally:
            process.kill()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_one_has_the_folder_at_a_time(file_system: str, tmp_path: Path):
    assert not is_locked(tmp_path)
    with lock(tmp_path) as is_ours:
        assert is_ours
        assert is_locked(tmp_path)
        with lock(tmp_path) as is_theirs:
            assert not is_theirs
        assert is_locked(tmp_path), "nobody who is refused takes it away"
    assert not is_locked(tmp_path)


def test_another_process_has_it_until_it_is_killed(file_system: str, tmp_path: Path):
    with holder(tmp_path, file_system) as process:
        assert is_locked(tmp_path)
        with lock(tmp_path) as is_ours:
            assert not is_ours
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
        assert not is_locked(tmp_path)
        with lock(tmp_path) as is_ours:
            assert is_ours


def test_waits_for_the_one_that_has_it(file_system: str, tmp_path: Path):
    has_it = threading.Event()

    def wait() -> bool:
        has_it.wait(20)
        with lock(tmp_path, wait_s=20.0) as is_ours:
            return is_ours

    with ThreadPoolExecutor(1) as thread:
        with lock(tmp_path):
            waiting = thread.submit(wait)
            has_it.set()
            with lock(tmp_path, wait_s=0.1) as is_ours:
                assert not is_ours, "not longer than it is told"
            assert not waiting.done()
        assert waiting.result(DEADLINE_S)


def test_one_of_many_at_once_gets_it(file_system: str, tmp_path: Path):
    n_inside, most = 0, 0
    start, guard = threading.Barrier(4), threading.Lock()

    def take(_: int) -> None:
        nonlocal n_inside, most
        start.wait(20)
        for _ in range(10):
            with lock(tmp_path, wait_s=20.0) as is_ours:
                assert is_ours
                with guard:
                    n_inside += 1
                    most = max(most, n_inside)
                with guard:
                    n_inside -= 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(take, range(4)))
    assert most == 1


@pytest.mark.usefixtures("without_locks")
@pytest.mark.parametrize("content", ['{"machine": "another", "process": 1}', "", "[]", '{"machine": 3}'])
def test_an_owner_elsewhere_counts_as_ended_after_a_minute_without_a_sign(content: str, tmp_path: Path):
    owner = tmp_path / ".lock-7"
    owner.write_text(content)
    with lock(tmp_path) as is_ours:
        assert not is_ours
    os.utime(owner, (time.time() - 59, time.time() - 59))
    with lock(tmp_path) as is_ours:
        assert not is_ours
    os.utime(owner, (time.time() - 61, time.time() - 61))
    assert names(tmp_path) == [".lock-7"]
    with lock(tmp_path) as is_ours:
        assert is_ours
        assert names(tmp_path) == [".lock-8"]


@pytest.mark.usefixtures("without_locks")
def test_numbers_only_rise(tmp_path: Path):
    """Else one who looked while the last owner had the folder could take a number above that of the next."""
    for number in (1, 2, 3):
        with lock(tmp_path) as is_ours:
            assert is_ours
        assert names(tmp_path) == [f".lock-{number}"]


@pytest.mark.usefixtures("without_locks")
def test_files_of_other_names_are_left_alone(tmp_path: Path):
    (tmp_path / ".lock-mine").touch()
    with lock(tmp_path) as is_ours:
        assert is_ours
    assert names(tmp_path) == [".lock-1", ".lock-mine"]


@pytest.mark.usefixtures("without_locks")
def test_who_was_slow_between_looking_and_writing_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It found nobody; meanwhile another took the folder after an owner of number 1, who had not ended well."""
    opened = Path.open

    def open_late(path: Path, *options: str, **others: str | None):
        if path.name == ".lock-1":
            with opened(tmp_path / ".lock-2", "w") as file:
                file.write("{}")
        return opened(path, *options, **others)

    monkeypatch.setattr(Path, "open", open_late)
    with lock(tmp_path) as is_ours:
        assert not is_ours
    monkeypatch.undo()
    assert names(tmp_path) == [".lock-2"]


def test_a_process_whose_folder_another_has_taken_stops(tmp_path: Path):
    with holder(tmp_path, "without-locks") as process:
        (tmp_path / ".lock-2").write_text("{}")
        assert process.wait(DEADLINE_S) == -signal.SIGTERM
        assert process.stderr is not None
        assert "another process has taken" in process.stderr.read()
    assert names(tmp_path) == [".lock-1", ".lock-2"], "those of others are left alone"


def test_a_process_shows_that_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    refuse_locks(monkeypatch)
    with holder(tmp_path, "without-locks"):
        owner = tmp_path / ".lock-1"
        os.utime(owner, (0, 0))
        wait_until(lambda: owner.stat().st_mtime > 0, "it touches its file")
        assert is_locked(tmp_path)


def test_says_that_no_file_can_be_made(tmp_path: Path):
    with pytest.raises(FileNotFoundError), lock(tmp_path / "missing"):
        pass
    assert not is_locked(tmp_path / "missing")
