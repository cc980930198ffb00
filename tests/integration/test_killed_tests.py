"""Tests that are killed leave no process behind that disturbs the next ones."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.processes import DEADLINE_S, ROOT, environment, is_alive, wait_until

# An actor that waits for a learner for an hour.
TESTS = """
from tests.processes import ROOT, environment
from tests.zygote import Zygote
waiting = ["--learner-address", "127.0.0.1:1", "--connect-timeout-s", "3600"]
actor = {zygote}.fork("rollcast.actor", waiting, cwd=ROOT, environment=environment())
print(actor.pid, flush=True)
actor.wait()
"""

# Of the run to which these tests belong.
OWNER = """
import signal
from pathlib import Path
from tests.processes import environment
from tests.zygote import share
share(Path({path!r}), environment(), imported_first={modules!r})
signal.pause()
"""


def a_run_with(zygote: str) -> subprocess.Popen[str]:
    """Starts a process that starts the actor, and prints its number."""
    return running(TESTS.format(zygote=zygote))


def running(program: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def number_of(tests: subprocess.Popen[str]) -> psutil.Process:
    assert tests.stdout is not None
    return psutil.Process(int(tests.stdout.readline()))


def test_a_command_ends_with_the_tests_that_started_it():
    with a_run_with("Zygote.started(environment(), imported_first=())") as tests:
        actor = number_of(tests)
        os.killpg(tests.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(actor), "its end")


def test_tests_that_share_a_zygote_end_by_themselves(tmp_path: Path):
    """One dies with its command, another with the end of its command unread; the third goes on."""
    path = tmp_path / "zygote"
    shared = f"Zygote.of({str(path)!r})"
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(running(OWNER.format(path=str(path), modules=())))
        stack.callback(owner.kill)
        wait_until(path.exists, "the zygote's address")
        dying, deaf, living = (stack.enter_context(a_run_with(shared)) for _ in range(3))
        stack.callback(living.kill)
        actors = [number_of(tests) for tests in (dying, deaf, living)]
        os.killpg(dying.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(actors[0]), "the end of the first")
        os.killpg(deaf.pid, signal.SIGSTOP)
        actors[1].kill()
        wait_until(lambda: not is_alive(actors[1]), "the end of the second")
        os.killpg(deaf.pid, signal.SIGKILL)
        deaf.wait(DEADLINE_S)
        later = stack.enter_context(a_run_with(shared))
        stack.callback(later.kill)
        assert is_alive(number_of(later)), "the zygote forks"
        assert is_alive(actors[2])


def test_a_zygote_that_cannot_import_says_so():
    with a_run_with("Zygote.started(environment(), imported_first=('no_such_module',))") as tests:
        _, said = tests.communicate(timeout=DEADLINE_S)
    assert "No module named 'no_such_module'" in said
    assert "the zygote has ended: did it print why?" in said


def test_so_does_one_that_is_shared(tmp_path: Path):
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(running(OWNER.format(path=str(tmp_path / "zygote"), modules=("no_such_module",))))
        stack.callback(owner.kill)
        wait_until((tmp_path / "zygote").exists, "the zygote's address")
        tests = stack.enter_context(a_run_with(f"Zygote.of({str(tmp_path / 'zygote')!r})"))
        _, said = tests.communicate(timeout=DEADLINE_S)
        assert "the zygote has ended: did it print why?" in said
