"""Tests that are killed leave no process behind that disturbs the next ones."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.processes import ROOT, environment, is_alive, wait_until

# An actor that waits for a learner for an hour.
TESTS = """
from tests.processes import ROOT, environment, zygote
from tests.zygote import Zygote
waiting = ["--learner-address", "127.0.0.1:1", "--connect-timeout-s", "3600"]
actor = {zygote}.fork("rollcast.actor", waiting, cwd=ROOT, environment=environment())
print(actor.pid, flush=True)
actor.wait()
"""


@pytest.mark.parametrize(
    "zygote",
    ["Zygote.started(environment(), imported_first=())", "zygote()"],
    ids=["their own zygote", "that of this run of pytest"],
)
def test_a_command_ends_with_the_tests_that_started_it(zygote):
    with subprocess.Popen(
        [sys.executable, "-c", TESTS.format(zygote=zygote)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as tests:
        actor = psutil.Process(int(tests.stdout.readline()))
        os.killpg(tests.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(actor), "its end")
