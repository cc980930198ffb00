"""Real containers on a real Docker engine, and a real Slurm cluster.

Without an engine, or a cluster, tests are skipped in one line; CI has both, and fails without.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

import docker
import psutil
import pytest

from tests import processes
from tests.needs import lacks
from tests.processes import DEADLINE_S, environment

ROOT = Path(__file__).parents[2]
# To ask an engine, or a learner, costs several processes milliseconds of computing.
wait_until = functools.partial(processes.wait_until, every_s=0.25)
_LABEL = "com.docker.compose"
# A label of a Swarm's node, and its value after the test that the Swarm was for.
SWARM_OWNER, OVER = "rollcast.test", "over"
PACKAGES = "/opt/venv/lib/python3.11/site-packages"
# Training that does not end by itself, however long a test takes. Its environments wait in each step, so that a test
# that watches containers leaves the cores to the tests beside it. Two actors gather a batch in 0.6 seconds.
ENDLESS = {
    "ROLLCAST_ENV_ID": "paced_environments:paced_cartpole",
    "ROLLCAST_ENV_KWARGS": '{"step_s": 0.01}',
    "ROLLCAST_N_ROLLOUT_STEPS": "16",
    "ROLLCAST_ENVS_PER_ACTOR": "4",
    "ROLLCAST_BATCH_SIZE": "8",
    "ROLLCAST_STOP_RETURN": "1e9",
    "ROLLCAST_TOTAL_STEPS": "1000000000",
}
# Kills what runs in a container, as when memory runs out: after `docker kill` the engine would leave it dead.
KILL = ["sh", "-c", "kill -9 $(cat /proc/1/task/1/children)"]
# Images of this checkout: the tests of another one, or what its user builds, do not change them.
TAG = f"test-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"
IMAGES = {"rollcast-actor": "actor/Dockerfile", "rollcast-learner": "learner/Dockerfile"}


def pytest_collection_modifyitems(items):
    """Everything here but the test of Slurm needs an engine, and the first test also builds the images."""
    for item in items:
        if Path(item.fspath).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slurm if Path(item.fspath).stem == "test_slurm" else pytest.mark.docker)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(900))


def _succeeds(*command):
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0


def _run(command, **options):
    """The finished process, with stdout and stderr together as text."""
    return subprocess.run(
        command, check=False, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )


def own_name():
    """Returns a name that no other test has, from which one sees whether its tests are still there."""
    return f"rollcast-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def is_left_over(name):
    """Returns whether a name is of tests that were killed."""
    found = re.match(r"rollcast-test-(\d+)-", name)
    return found is not None and not psutil.pid_exists(int(found[1]))


def _remove(client, is_doomed):
    """Kills and removes the containers, and removes the networks and volumes, of projects and stacks by their names."""
    containers = client.containers.list(all=True, ignore_removed=True)
    options = {"force": True, "v": True}
    for part in (*containers, *client.networks.list(), *client.volumes.list()):
        labels = (part.labels if part in containers else part.attrs.get("Labels")) or {}
        if any(is_doomed(labels.get(label, "")) for label in (f"{_LABEL}.project", "com.docker.stack.namespace")):
            # a process beside this one may remove it as well
            with contextlib.suppress(docker.errors.APIError):
                part.remove(**(options if part in containers else {}))


@contextlib.contextmanager
def locked(name, kind):
    """Locks something of which this machine has one, for the tests of all its checkouts."""
    with (Path(tempfile.gettempdir()) / f"rollcast-test-engine-{name}.lock").open("w") as file:
        fcntl.flock(file, kind)
        yield


@contextlib.contextmanager
def networks_stay(engine):
    """Holds back the end of a Swarm while the body runs.

    An engine that leaves a Swarm disconnects all containers from networks that are attachable, and those of
    docker-compose 1 are.
    """
    with locked("networks", fcntl.LOCK_SH):
        yield
    end_swarm(engine)


def swarm_owner(engine):
    """Returns what the Swarm of the engine is labelled with: the test it is for, or `OVER`; None without a Swarm."""
    found = engine.info()["Swarm"]
    if found["LocalNodeState"] == "inactive":
        return None
    if not found["ControlAvailable"]:
        return ""
    return (engine.nodes.get(found["NodeID"]).attrs["Spec"].get("Labels") or {}).get(SWARM_OWNER, "")


def end_swarm(engine, kind=fcntl.LOCK_EX | fcntl.LOCK_NB):
    """Leaves a Swarm whose test is over or was killed; while tests rely on their networks, the last of them does so."""
    with contextlib.suppress(BlockingIOError), locked("networks", kind):
        owner = swarm_owner(engine)
        if owner and (owner == OVER or is_left_over(owner)):
            engine.swarm.leave(force=True)


@pytest.fixture(scope="session")
def engine():
    """A client of the Docker engine."""
    # asked through the command first: the SDK leaves a socket open when nobody answers
    if shutil.which("docker") is None or not _succeeds("docker", "info"):
        lacks("docker", "no Docker engine answers (docker info)")
    client = docker.from_env(timeout=60)
    _remove(client, is_left_over)
    yield client
    client.close()


@pytest.fixture(scope="session")
def compose_command(engine):
    """`docker-compose` or `docker compose`, whichever this machine has."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if not _succeeds("docker", "compose", "version"):
        lacks("docker", "neither docker-compose nor docker compose is installed")
    return ["docker", "compose"]


@pytest.fixture(scope="session")
def build(engine, tmp_path_factory):
    """Builds an image from this tree and returns its id; of the processes of a run the first one builds it for all."""
    own = tmp_path_factory.getbasetemp()
    of_all = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def build(name, *options, tag=TAG):
        with locked(f"{name}-{tag}", fcntl.LOCK_EX):
            built = of_all / f"{name}-{tag}.built"
            if not built.exists():
                command = [
                    "docker",
                    "build",
                    "--network=host",
                    "-f",
                    IMAGES[name],
                    *options,
                    "-t",
                    f"{name}:{tag}",
                    ".",
                ]
                done = _run(command, timeout=540)
                assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout[-1500:]}"
                built.touch()
        return engine.images.get(f"{name}:{tag}").id

    return build


@pytest.fixture(scope="session")
def actor_image(build):
    """The actor's image, built from this tree: its id."""
    return build("rollcast-actor")


@pytest.fixture(scope="session")
def images(build, actor_image):
    """Both images, built from this tree: name -> id."""
    return {"rollcast-actor": actor_image, "rollcast-learner": build("rollcast-learner")}


@pytest.fixture
def actor_image_with_torch(build, images):
    """The actor's image with the extra `torch`, whose layer is the learner's: its id."""
    return build("rollcast-actor", "--build-arg", "EXTRAS=torch", tag=f"{TAG}-torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposeProject:
    """One `docker-compose` project under a name of its own, so that two test runs never meet.

    Attributes:
        name: The project's name; containers are `NAME_learner_1` or `NAME-learner-1`.
        runs: Where the learner's runs are on this machine.
    """

    name: str
    command: tuple[str, ...]
    files: tuple[Path, ...]
    runs: Path
    environment: dict[str, str]
    engine: docker.DockerClient

    def run(self, *arguments, check=True, timeout_s=300):
        """Runs one compose command and returns what it printed."""
        command = [*self.command, "-p", self.name, "--project-directory", str(ROOT)]
        for file in self.files:
            command += ["-f", str(file)]
        done = _run([*command, *arguments], env=environment() | self.environment, timeout=timeout_s)
        assert not check or done.returncode == 0, f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def up(self, *, n_actors):
        """Starts what is not running and brings the actors to this number."""
        self.run("up", "-d", "--no-build", "--scale", f"actor={n_actors}")

    def containers(self, service, *, ended=False):
        """The running containers of a service, by number; with `ended` those that have ended, too."""
        labels = [f"{_LABEL}.project={self.name}", f"{_LABEL}.service={service}"]
        found = self.engine.containers.list(all=ended, filters={"label": labels}, ignore_removed=True)
        return sorted(found, key=lambda container: int(container.labels[f"{_LABEL}.container-number"]))

    def exit_codes(self):
        """Service -> exit codes of its containers, None for one that runs. Services without containers are left out."""
        states = {
            service: [container.attrs["State"] for container in self.containers(service, ended=True)]
            for service in ("runs-folder", "learner", "relay", "actor", "evaluator")
        }
        return {
            service: [None if state["Running"] else state["ExitCode"] for state in found]
            for service, found in states.items()
            if found
        }

    def wait_for_the_end(self, **exit_codes):
        """Waits for the end of services, and compares the exit codes of all their containers."""
        for service in exit_codes:
            for container in self.containers(service, ended=True):
                # asking again and again would keep the engine busy
                container.wait(timeout=3 * DEADLINE_S)
        assert {service: self.exit_codes()[service] for service in exit_codes} == exit_codes

    def is_healthy(self, service):
        """Returns True if every running container of a service says that it is healthy."""
        return all(container.health == "healthy" for container in self.containers(service))

    def leftovers(self):
        """Containers and networks of this project."""
        labels = {"label": f"{_LABEL}.project={self.name}"}
        containers = self.engine.containers.list(all=True, filters=labels, ignore_removed=True)
        return [found.name for found in (*containers, *self.engine.networks.list(filters=labels))]

    def address(self, service="learner", port=50051):
        """Returns the address of a service's port on this machine, `127.0.0.1:PORT`."""
        # for a moment after it has started, the engine may not list a container's ports
        wait_until(lambda: self.containers(service)[0].ports.get(f"{port}/tcp"), f"the port of {service}")
        (container,) = self.containers(service)
        (binding,) = container.ports[f"{port}/tcp"]
        return f"127.0.0.1:{binding['HostPort']}"


def paced(folder):
    """Returns the volume with the environments of `ENDLESS`, for a service of Compose or of a stack."""
    file = folder / "paced_environments.py"
    shutil.copy(ROOT / "tests/soak/environments.py", file)
    file.chmod(0o644)
    return {"volumes": [f"{file}:{PACKAGES}/{file.name}:ro"]}


@pytest.fixture
def compose(engine, compose_command, images, tmp_path, request):
    """A compose project, not started yet; afterwards it is removed, and its logs are shown when the test failed.

    `ROLLCAST_*` settings go through `@pytest.mark.parametrize("compose", [{...}], indirect=True)`; `OVERRIDE` is no
    setting but names the files on top of docker-compose.yml.
    """
    settings = dict(getattr(request, "param", {}))
    given = [ROOT / file for file in settings.pop("OVERRIDE", "").split()]
    services = {"runs-folder": {"volumes": []}, "learner": {"volumes": []}}
    if settings.get("ROLLCAST_ENV_ID") == ENDLESS["ROLLCAST_ENV_ID"]:
        services |= {service: paced(tmp_path) for service in ("learner", "actor", "evaluator")}
    runs = tmp_path / "runs"
    runs.mkdir()
    override = tmp_path / "test.yml"
    # lists of volumes merge by target: the run lands in the test's own folder instead of ./runs
    for service in ("runs-folder", "learner"):
        services[service]["volumes"].append(f"{runs}:/runs")
    # JSON is YAML
    override.write_text(json.dumps({"services": services}))
    project = ComposeProject(
        name=own_name(),
        command=tuple(compose_command),
        files=(ROOT / "docker-compose.yml", *given, override),
        runs=runs,
        # 0: the engine takes a free port
        environment={"ROLLCAST_PORT": "0", "ROLLCAST_TAG": TAG, "ROLLCAST_CERTS": str(tmp_path / "certs"), **settings},
        engine=engine,
    )
    try:
        with networks_stay(engine):
            yield project
        if getattr(request.node, "rep_call", None) is not None and request.node.rep_call.failed:
            # pytest shows what a failed test printed
            print(project.run("logs", "--no-color", "--tail=100", check=False))  # noqa: T201
    finally:
        # by `docker-compose down`, containers would take their time to drain
        _remove(engine, lambda name: name == project.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call":
        item.rep_call = report
    return report
