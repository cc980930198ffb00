"""A signal ends a process whose main thread has the lock of the event that tells of it."""

from pathlib import Path
from typing import Final

import pytest

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
