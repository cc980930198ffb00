import json
import multiprocessing

import pytest

from actor.environments.make import EnvironmentFactory
from actor.local_process import LocalActorPlan
from learner.actors.local_processes import _LocalActor

PLAN = LocalActorPlan(
    address="unix:/nowhere", actor_id="local-0", env_factory=EnvironmentFactory("CartPole-v1"), n_envs=1, network="auto"
)


class Ended:
    """A process that has ended with 1."""

    exitcode = 1

    def close(self):
        pass


@pytest.mark.parametrize(("exception_type", "may_recover"), [("ConfigurationError", False), ("ValueError", True)])
def test_an_actor_with_settings_that_cannot_be_right_is_not_started_again(exception_type, may_recover):
    actor = _LocalActor(PLAN, multiprocessing.get_context("spawn"))
    failures, told = multiprocessing.Pipe(duplex=False)
    with told:
        told.send_bytes(json.dumps({"exception_type": exception_type, "message": "m", "traceback": ""}).encode())
    actor.process, actor._failures = Ended(), failures
    end = actor.take_end()
    assert (end.report.splitlines()[0], end.may_recover) == (f"{exception_type}: m", may_recover)
