"""A signal ends a process whose main thread has the lock of the event that tells of it."""

from pathlib import Path
from typing import Final

import pytest

from tests.histories import busy_run, serve_history
from tests.integration.test_hangup import COMMANDS
from tests.processes import script
from tests.unit.tools.policy_server.test_followed import preferring

pytestmark = pytest.mark.slow

# Sends SIGTERM to itself when rollcast waits on an event in the main thread; `Event.wait` then holds the event's lock.
_SIGNALLED: Final = """
import os, signal, sys, threading

def end_in_the_wait(frame, kind, argument):
    callers = (frame, frame.f_back, frame.f_back and frame.f_back.f_back)
    if kind == "call" and [caller and caller.f_code for caller in callers[:2]] == WAIT:
        if callers[2].f_globals["__name__"].startswith("rollcast."):
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGTERM)

WAIT = [threading.Condition.wait.__code__, threading.Event.wait.__code__]
sys.setprofile(end_in_the_wait)
"""

_COMMAND: Final = """
from rollcast.tools import cli
sys.exit(cli.main(sys.argv[1:]))
"""

_LOCAL_ACTOR: Final = """
import multiprocessing
from rollcast.actor.acting.local_process import LocalActorPlan, run_local_actor
from rollcast.actor.settings import ActorSettings

env_factory = ActorSettings(learner_address="127.0.0.1:9", env_id="CartPole-v1").env_factory()
plan = LocalActorPlan(
    address="unix:/nonexistent/learner", actor_id="actor", env_factory=env_factory, n_envs=1, network="mlp"
)
run_local_actor(plan, multiprocessing.Pipe()[0])
"""


@pytest.mark.parametrize("name", ["relay", "scaler", "serve-policy"])
def test_a_command_ends(name: str, tmp_path: Path):
    (tmp_path / "policy_best.safetensors").write_bytes(preferring(0, 5))
    (_, *arguments), _ = COMMANDS[name]
    given = [str(argument).format(run=tmp_path) for argument in arguments]
    program = tmp_path / "command.py"
    program.write_text(_SIGNALLED + _COMMAND)
    done = script(program, *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_local_actor_ends(tmp_path: Path):
    program = tmp_path / "local_actor.py"
    program.write_text(_SIGNALLED + _LOCAL_ACTOR)
    done = script(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


# Sends SIGTERM to itself between two frames, and SIGHUP in the handler if that sets an event.
_TOP: Final = """
import os, signal, sys, threading, time
from rollcast.tools import cli

def hang_up_in_the_handler(frame, kind, argument):
    if kind == "call" and [frame.f_code, frame.f_back and frame.f_back.f_code] == SET:
        if frame.f_back.f_back.f_code.co_filename.endswith("/commands/signals.py"):
            os.kill(os.getpid(), signal.SIGHUP)

SET = [threading.Condition.notify_all.__code__, threading.Event.set.__code__]
time.sleep = lambda seconds: os.kill(os.getpid(), signal.SIGTERM)
os.environ |= {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
sys.setprofile(hang_up_in_the_handler)
sys.exit(cli.main(["top", *sys.argv[1:]]))
"""


def test_top_ends_when_a_second_signal_interrupts_the_handler_of_the_first(tmp_path: Path):
    program = tmp_path / "top.py"
    program.write_text(_TOP)
    with serve_history(busy_run()) as served:
        done = script(program, "--address", served.address, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left-arm" in done.stdout
