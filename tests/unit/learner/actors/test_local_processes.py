import json
import multiprocessing

import pytest

from rollcast.actor.acting.local_process import LocalActorPlan
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.learner.actors.local_processes import _LocalActor

PLAN = LocalActorPlan(
    address="unix:/nowhere", actor_id="local-0", env_factory=EnvironmentFactory("CartPole-v1"), n_envs=1, network="auto"
)


class Ended:
    """A process that has ended with 1."""

    exitcode = 1

    def close(self):
        pass


@pytest.mark.parametrize("is_permanent", [True, False])
def test_an_actor_that_fails_for_good_is_not_started_again(is_permanent):
    actor = _LocalActor(PLAN, multiprocessing.get_context("spawn"))
    failures, told = multiprocessing.Pipe(duplex=False)
    with told:
        told.send_bytes(
            json.dumps({"exception_type": "E", "message": "m", "traceback": "", "is_permanent": is_permanent}).encode()
        )
    actor.process, actor._failures = Ended(), failures
    end = actor.take_end()
    assert (end.report.splitlines()[0], end.may_recover) == ("E: m", not is_permanent)
