"""`docker stack deploy` of deploy/stack.yml on the Swarm of this machine: scaled, updated, drained and removed."""

import fcntl
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import docker
import numpy as np
import pytest

from rollcast.services.status.status import ActorState
from tests.e2e.conftest import ENDLESS, OVER, SWARM_OWNER, TAG, end_swarm, own_name, paced, swarm_owner, wait_until
from tests.e2e.watch import Watch
from tests.needs import lacks
from tests.processes import DEADLINE_S, ROOT, environment, free_port

# The stock stack has four actors with a core each, and the machine may have two cores.
FEW = {"deploy": {"replicas": 2, "resources": {"reservations": {"cpus": "0.1"}}}}


def run(*command, **variables):
    """Runs a command, and again where the Swarm itself changed what it changes between its reading and its writing."""

    def is_done():
        done = subprocess.run(
            command, cwd=ROOT, env=environment() | variables, capture_output=True, text=True, check=False, timeout=120
        )
        said = f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr}"
        assert done.returncode == 0 or "update out of sequence" in done.stderr, said
        return done.returncode == 0

    wait_until(is_done, f"{' '.join(map(str, command))} to be done")


@pytest.fixture
def swarm(engine):
    """The engine as a Swarm of one node, as long as the test takes, which drains this node."""
    if swarm_owner(engine) is not None:
        end_swarm(engine, fcntl.LOCK_EX)
    if swarm_owner(engine) is not None:
        lacks("docker", "no Swarm of the test's own, whose node it drains: the engine is part of one (docker info)")
    node = engine.swarm.init(advertise_addr="127.0.0.1")
    label(node, own_name())
    yield node
    label(node, OVER)
    end_swarm(engine)


def label(node, owner):
    run("docker", "node", "update", "--label-add", f"{SWARM_OWNER}={owner}", node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stack under a name of its own, so that two test runs never meet.

    Attributes:
        name: The stack's.
        port: Where its learner is on this machine.
        override: The file on top of the stack's.
    """

    name: str
    port: int
    override: Path
    engine: docker.DockerClient

    def deploy(self, **settings):
        files = ("--compose-file", "deploy/stack.yml", "--compose-file", self.override)
        command = ("docker", "stack", "deploy", *files, "--detach=true", "--resolve-image", "never", self.name)
        run(*command, ROLLCAST_PORT=str(self.port), ROLLCAST_TAG=TAG, **settings)

    def scale(self, n_actors):
        run("docker", "service", "scale", "--detach", f"{self.name}_actor={n_actors}")

    def update_actors(self, *options):
        # it watches whether new tasks stay up for this long; the default is 5 s, for each half of them
        run("docker", "service", "update", "--quiet", "--update-monitor", "1s", *options, f"{self.name}_actor")

    def set_availability(self, availability):
        """Sets the availability of the Swarm's only node: `active`, or `drain`."""
        run("docker", "node", "update", "--availability", availability, self.engine.info()["Swarm"]["NodeID"])

    def containers(self, service):
        """Returns the containers of a service, running or not."""
        labels = {"label": f"com.docker.swarm.service.name={self.name}_{service}"}
        return self.engine.containers.list(all=True, filters=labels, ignore_removed=True)

    def parts(self):
        """Returns the names of its services, containers and networks."""
        labels = {"label": f"com.docker.stack.namespace={self.name}"}
        containers = self.engine.containers.list(all=True, filters=labels, ignore_removed=True)
        networks = self.engine.networks.list(filters=labels)
        return [part.name for part in (*self.engine.services.list(filters=labels), *containers, *networks)]

    def volumes(self):
        return self.engine.volumes.list(filters={"label": f"com.docker.stack.namespace={self.name}"})

    def remove(self):
        """Removes everything but the volume."""
        wait_until(self._is_removed, "the stack to be gone", 240)

    def _is_removed(self):
        """Removes what can be removed now.

        The engine refuses a network while a task on it ends, and lists one for a moment after it was removed.
        """
        done = subprocess.run(
            ("docker", "stack", "rm", self.name), capture_output=True, text=True, check=False, timeout=120
        )
        is_ending = "in use by task" in done.stderr or re.search(r"network \S+ not found", done.stderr)
        assert done.returncode == 0 or is_ending, done.stderr
        return not self.parts()


@pytest.fixture
def stack(engine, images, swarm, tmp_path):
    override = tmp_path / "override.yml"
    services = {"learner": paced(tmp_path), "actor": paced(tmp_path) | FEW}
    # JSON is YAML
    override.write_text(json.dumps({"version": "3.8", "services": services}))
    name = own_name()
    stack = Stack(name=name, port=free_port(), override=override, engine=engine)
    try:
        yield stack
    finally:
        if stack.parts():
            stack.remove()
        for volume in stack.volumes():
            volume.remove()


def test_the_stack_trains_through_scaling_updates_and_drains_and_serves_what_it_has_learnt(stack):
    """One stack for everything, since each start of a learner takes its time."""
    stack.deploy(**ENDLESS)
    with Watch(f"127.0.0.1:{stack.port}") as watch:

        def lives():
            return sorted(watch.incarnations().values())

        watch.wait_for_training(2, 120)
        wait_until(lambda: [learner.health for learner in stack.containers("learner")] == ["healthy"], "health")
        assert watch.incarnations() == {f"{stack.name}_actor-1": 1, f"{stack.name}_actor-2": 1}, "named by their slots"

        stack.scale(1)
        watch.wait_for_training(1)
        watch.wait_for_progress()
        assert set(watch.incarnations(ActorState.LEFT).values()) == {1}
        stack.scale(2)
        watch.wait_for_training(2)
        assert lives() == [1, 2], "who comes back has the slot that it had"

        stack.update_actors("--env-add", "ROLLCAST_ENVS_PER_ACTOR=2")
        wait_until(lambda: lives() == [2, 3], "the updated actors")
        streaming = [actor for actor in watch.client.actors() if actor.state is ActorState.STREAMING]
        assert {actor.n_envs for actor in streaming} == {2}
        watch.wait_for_progress()
        assert not watch.incarnations(ActorState.LOST), "all of them drained, none torn away"

        before = watch.client.status()
        stack.set_availability("drain")
        wait_until(lambda: watch.phase() is None, "the learner's end")
        (learner,) = stack.containers("learner")
        assert learner.wait(timeout=DEADLINE_S)["StatusCode"] == 0
        # no more steps than there were: the next task finds a run that has ended, and serves its policy
        stack.deploy(**ENDLESS | {"ROLLCAST_TOTAL_STEPS": "1"})
        stack.set_availability("active")
        watch.wait_for_the_end()
        after = watch.client.status()
        assert after.env_steps >= before.env_steps, "it goes on from the checkpoint that it wrote at its end"
        assert after.policy_version >= before.policy_version
        action, _ = watch.client.act({"": np.zeros((3, 4), np.float32)})
        assert action.shape == (3,)

    stack.remove()
    assert [volume.name for volume in stack.volumes()] == [f"{stack.name}_runs"], "the run stays"
