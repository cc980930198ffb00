"""`docker stack deploy` of deploy/stack.yml, as it is, on the Swarm of this machine."""

import subprocess
import uuid
from dataclasses import dataclass

import docker
import numpy as np
import pytest

from rollcast.services.status.status import ActorState
from tests.e2e.watch import Watch
from tests.processes import ROOT, environment, free_port, wait_until


def run(*command, **variables):
    done = subprocess.run(
        command, cwd=ROOT, env=environment() | variables, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}"


@pytest.fixture
def swarm(engine):
    """The engine as a Swarm of one node, as long as the test takes."""
    if engine.info()["Swarm"]["LocalNodeState"] == "active":
        yield
        return
    run("docker", "swarm", "init", "--advertise-addr", "127.0.0.1")
    yield
    run("docker", "swarm", "leave", "--force")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stack under a name of its own, so that two test runs never meet.

    Attributes:
        name: The stack's.
        port: Where its learner is on this machine.
        engine: The engine it runs on.
    """

    name: str
    port: int
    engine: docker.DockerClient

    def deploy(self, **settings):
        run(
            *("docker", "stack", "deploy", "--compose-file", "deploy/stack.yml", "--resolve-image", "never", self.name),
            ROLLCAST_PORT=str(self.port),
            **settings,
        )

    def containers(self):
        labels = {"label": f"com.docker.stack.namespace={self.name}"}
        return self.engine.containers.list(all=True, filters=labels, ignore_removed=True)

    def learner(self):
        """The id of the learner's container that is healthy; None while there is none."""
        for container in self.containers():
            if f"{self.name}_learner" in container.name and container.health == "healthy":
                return container.id
        return None

    def remove(self):
        run("docker", "stack", "rm", self.name)
        wait_until(lambda: not self.containers(), "the stack's containers to be gone", 60)
        volumes = {"label": f"com.docker.stack.namespace={self.name}"}
        for volume in self.engine.volumes.list(filters=volumes):
            volume.remove()


@pytest.fixture
def stack(engine, images, swarm):
    stack = Stack(name=f"rollcast-test-{uuid.uuid4().hex[:8]}", port=free_port(), engine=engine)
    try:
        yield stack
    finally:
        stack.remove()


def test_the_stock_stack_trains_scales_and_serves_what_it_has_learnt(stack):
    endless = {"ROLLCAST_STOP_RETURN": "1e9"}
    stack.deploy(**endless)
    with Watch(f"127.0.0.1:{stack.port}") as watch:
        # of its four actors as many as there are cores that nobody has reserved
        wait_until(lambda: watch.is_training(len(watch.incarnations() or "?")), "training", 120)
        watch.wait_for_progress()
        wait_until(lambda: stack.learner() is not None, "health", 60)
        first = stack.learner()

        run("docker", "service", "scale", "--detach", f"{stack.name}_actor=1")
        watch.wait_for_training(1)
        watch.wait_for_progress()
        assert not watch.incarnations(ActorState.LOST), "drained, not torn away"

        # no more steps than there were: the next task finds a run that has ended, and serves its policy
        stack.deploy(**endless, ROLLCAST_TOTAL_STEPS="1")
        wait_until(lambda: stack.learner() not in (None, first), "the next task", 120)
        watch.wait_for_the_end()
        assert watch.client.status().updates > 0
        action, _ = watch.client.act({"": np.zeros((3, 4), np.float32)})
        assert action.shape == (3,)
