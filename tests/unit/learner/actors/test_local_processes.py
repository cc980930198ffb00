import contextlib
import json
import multiprocessing
from types import SimpleNamespace

import pytest

from rollcast.actor.acting.local_process import LocalActorPlan
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.learner.actors import local_processes
from rollcast.learner.actors.local_processes import LocalProcesses
from rollcast.services.errors import ActorFailedError

PLAN = LocalActorPlan(
    address="unix:/nowhere", actor_id="local-0", env_factory=EnvironmentFactory("CartPole-v1"), n_envs=1, network="auto"
)


class Ended:
    """A process that runs at once, and has ended with 1."""

    exitcode = 1

    def __init__(self, target, args, **_):
        self.start = lambda: target(*args)

    def close(self):
        pass


@pytest.mark.parametrize("is_permanent", [True, False])
def test_an_actor_that_fails_for_good_is_not_started_again(monkeypatch, is_permanent):
    failure = {"exception_type": "E", "message": "m", "traceback": "t"}
    report = json.dumps(failure | {"is_permanent": is_permanent}).encode()
    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=Ended)
    monkeypatch.setattr(local_processes, "multiprocessing_context", lambda method: context)
    monkeypatch.setattr(local_processes, "run_local_actor", lambda plan, failures: failures.send_bytes(report))
    ends = []
    processes = LocalProcesses([PLAN], start_method=None, max_restarts=9, on_exit=lambda _, end: ends.append(end))
    processes.start()
    refused = pytest.raises(ActorFailedError, match=r"local-0 failed and will not be restarted .*: E: m")
    with refused if is_permanent else contextlib.nullcontext():
        processes.look_after()
    assert [(end.report, end.failure.traceback) for end in ends] == [("E: m", "t")]
    assert processes.processes == []


def test_processes_that_cannot_begin_end_the_run_and_say_what_to_do(monkeypatch):
    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=Ended)
    monkeypatch.setattr(local_processes, "multiprocessing_context", lambda method: context)
    monkeypatch.setattr(local_processes, "run_local_actor", lambda plan, failures: None)
    processes = LocalProcesses(
        [PLAN], start_method=None, max_restarts=9, on_exit=lambda *_: None, has_rollouts=lambda: False
    )
    processes.start()
    told = r"local-0 failed before the first rollout.*exit code 1 before it could begin; .* not in a notebook"
    with pytest.raises(ActorFailedError, match=told):
        processes.look_after()
