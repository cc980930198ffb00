"""Tests that are killed leave no process behind that disturbs the next ones."""

import os
import signal
import subprocess
import sys

import psutil

from tests.processes import ROOT, environment, is_alive, wait_until

# A learner that waits for actors, which does not end by itself.
TESTS = """
from tests.processes import running
with running("learner", "learner", "--address", "127.0.0.1:0", "--run-dir", "{folder}/run") as learner:
    print(learner.pid, flush=True)
    learner.wait()
"""


def test_a_command_ends_with_the_tests_that_started_it(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", TESTS.format(folder=tmp_path)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as tests:
        learner = psutil.Process(int(tests.stdout.readline()))
        os.killpg(tests.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(learner), "its end")
