"""Ctrl-C, a closed terminal and SIGTERM: early, once, and again and again."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.processes import DEADLINE_S, ROOT, descendants, environment, is_alive, running, wait_until

TRAIN = ("learner", "train", "--n-actors", 2, "--stop-return", 1e9, "--total-steps", 10**9, "--log-interval-s", 0.1)
# For each command a library that it imports on its way; the actor's and the learner's are long.
EARLY = [
    (("learner", "status"), "pydantic_core"),
    (TRAIN, "_multiarray_umath"),
    (TRAIN, "libtorch_cpu"),
    (("actor", "--learner-address", "127.0.0.1:1"), "_multiarray_umath"),
    (("learner", "actor", "--learner-address", "127.0.0.1:1"), "cygrpc"),
]


@pytest.mark.parametrize(("command", "library"), EARLY)
def test_ctrl_c_during_imports_ends_quietly(command, library, tmp_path):
    own = ("--run-dir", tmp_path / "run") if command is TRAIN else ()
    process = subprocess.Popen(
        [sys.executable, "-m", f"rollcast.{command[0]}", *map(str, (*command[1:], *own))],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    maps = Path(f"/proc/{process.pid}/maps")
    try:
        wait_until(lambda: process.poll() is not None or library in maps.read_text(), "the import has begun")
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, output) == (130, "")


@pytest.mark.parametrize(
    ("send", "number", "times", "code"),
    [
        pytest.param(os.killpg, signal.SIGINT, 1, 130, id="Ctrl-C"),
        pytest.param(os.killpg, signal.SIGINT, 5, 130, id="Ctrl-C five times"),
        pytest.param(os.killpg, signal.SIGHUP, 1, 0, id="its terminal is closed"),
        pytest.param(os.kill, signal.SIGTERM, 1, 0, id="SIGTERM, to its first process alone"),
    ],
)
def test_training_that_is_ended_leaves_no_process_and_no_temporary_folder(send, number, times, code, tmp_path):
    metrics = tmp_path / "run" / "metrics.jsonl"
    # of its own, where no other run leaves anything, and short: names of sockets have 107 characters
    with (
        tempfile.TemporaryDirectory(prefix="rc-") as temporary,
        running(*TRAIN, "--algorithm", "impala", "--run-dir", tmp_path / "run", TMPDIR=temporary) as process,
    ):
        wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size), "it trains")
        assert list(Path(temporary).glob("rollcast-*")), "the socket's folder"
        children = descendants(process)
        assert len(children) >= 2
        for _ in range(times):
            send(process.pid, number)
        output, _ = process.communicate(DEADLINE_S)
        assert process.returncode == code, output
        assert "Traceback" not in output
        wait_until(lambda: not any(map(is_alive, children)), f"{children} to be gone")
        # torch keeps one for whoever comes next
        assert [path for path in Path(temporary).iterdir() if not path.name.startswith("torchinductor")] == []
    assert (tmp_path / "run" / "policy_last.safetensors").is_file() or times > 1
