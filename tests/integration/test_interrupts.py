"""Ctrl-C before a command has begun, and while it trains; test_run_ends.py has every other end of training."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.processes import DEADLINE_S, ROOT, descendants, environment, is_alive, running, wait_until

TRAIN = ("learner", "train", "--n-actors", 2, "--stop-return", 1e9, "--total-steps", 10**9, "--log-interval-s", 0.1)
EARLY = [
    ("learner", "status"),
    TRAIN,
    ("actor", "--learner-address", "127.0.0.1:1"),
    ("learner", "actor", "--learner-address", "127.0.0.1:1"),
]
# Python runs this before all else. To look from outside would be too late on a busy machine. numpy and pydantic import
# this module from C and Rust, where KeyboardInterrupt becomes an ImportError about a broken installation.
CTRL_C_DURING_AN_IMPORT = """
import os, signal, sys
sys.addaudithook(
    lambda event, details: event == "import" and details[0] == "_datetime" and os.killpg(0, signal.SIGINT)
)
"""


@pytest.mark.parametrize("command", EARLY)
def test_ctrl_c_during_imports_ends_quietly(command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(CTRL_C_DURING_AN_IMPORT)
    variables = environment()
    own = ("--run-dir", tmp_path / "run") if command is TRAIN else ()
    process = subprocess.run(
        [sys.executable, "-m", f"rollcast.{command[0]}", *map(str, (*command[1:], *own))],
        cwd=ROOT,
        env=variables | {"PYTHONPATH": os.pathsep.join((str(tmp_path), variables["PYTHONPATH"]))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (process.returncode, process.stdout) == (130, "")


def test_training_that_is_ended_leaves_no_process_and_no_temporary_folder(tmp_path):
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
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(DEADLINE_S)
        assert process.returncode == 130, output
        assert "Traceback" not in output
        assert f" train --resume {tmp_path / 'run'}\n" in output
        wait_until(lambda: not any(map(is_alive, children)), f"{children} to be gone")
        # torch keeps one for whoever comes next
        assert [path for path in Path(temporary).iterdir() if not path.name.startswith("torchinductor")] == []
    assert (tmp_path / "run" / "policy_last.safetensors").is_file()
