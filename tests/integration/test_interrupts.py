"""Ctrl-C as a terminal sends it: to every process of the group, early, once, and again and again."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.processes import DEADLINE_S, ROOT, environment, is_alive, wait_until

TRAIN = ("learner", "train", "--n-actors", 2, "--stop-return", 1e9, "--total-steps", 10**9, "--log-interval-s", 1)
# For each command a library that it imports on its way; the actor's and the learner's are long.
EARLY = [
    (("learner", "status"), "pydantic_core"),
    (TRAIN, "_multiarray_umath"),
    (TRAIN, "libtorch_cpu"),
    (("actor", "--learner-address", "127.0.0.1:1"), "_multiarray_umath"),
    (("learner", "actor", "--learner-address", "127.0.0.1:1"), "cygrpc"),
]


@pytest.fixture
def temporary():
    """A folder for what is temporary; its path is short, because sockets lie there."""
    with tempfile.TemporaryDirectory(prefix="rollcast-test-") as folder:
        yield Path(folder)


@pytest.fixture
def start(temporary):
    """Starts a command in a process group of its own, with its own folder for what is temporary."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"rollcast.{arguments[0]}", *map(str, arguments[1:])],
            cwd=ROOT,
            env=environment() | {"TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=as_in_a_terminal,  # noqa: PLW1509  # one thread
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_S)
        process.stdout.close()


def as_in_a_terminal() -> None:
    """Ignores neither signal: a shell's background jobs ignore Ctrl-C, what `nohup` starts the other one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def has_mapped(process: subprocess.Popen[str], library: str) -> bool:
    return process.poll() is not None or library in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.parametrize(("command", "library"), EARLY)
def test_ctrl_c_during_imports_ends_quietly(start, command, library, tmp_path):
    process = start(*command, *(("--run-dir", tmp_path / "run") if command is TRAIN else ()))
    wait_until(lambda: has_mapped(process, library), "the import has begun")
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, output) == (130, "")


def test_training_whose_terminal_is_closed_saves_and_ends_well(start, tmp_path):
    process = start(*TRAIN, "--run-dir", tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size), "it trains")
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    os.killpg(process.pid, signal.SIGHUP)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert (tmp_path / "run" / "policy_last.safetensors").is_file()
    wait_until(lambda: not any(map(is_alive, children)), "its processes have ended")


@pytest.mark.parametrize("times", [1, 5])
def test_interrupted_training_leaves_no_process_and_no_temporary_folder(start, times, tmp_path, temporary):
    process = start(*TRAIN, "--run-dir", tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size), "it trains")
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    wait_until(lambda: not any(map(is_alive, children)), "its processes have ended")
    # torch keeps one for whoever comes next
    left = {path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor")}
    assert left == set()
