"""Ctrl-C before a command has begun; test_run_ends.py has it while training."""

import os
import subprocess
import sys

import pytest

from tests.processes import DEADLINE_S, ROOT, environment

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
