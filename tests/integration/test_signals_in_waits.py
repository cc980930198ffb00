"""A signal ends a process whose main thread has the lock of the event that tells of it."""

from pathlib import Path
from typing import Final

import pytest

from tests.processes import script

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


def test_a_local_actor_ends(tmp_path: Path):
    program = tmp_path / "local_actor.py"
    program.write_text(_SIGNALLED + _LOCAL_ACTOR)
    done = script(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
