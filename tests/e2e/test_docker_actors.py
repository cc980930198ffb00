"""`DockerDistributedActors` on a real engine: the suite that every kind passes, and what containers promise beyond."""

import functools
import io
import re
import signal
import socket
import subprocess
import sys
import tarfile
import uuid

import docker
import pytest

from rollcast.learner.actors.docker_engine import NAME_LABEL
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import (
    ActorFailedError,
    AddressInUseError,
    ConfigurationError,
    ContainerEngineError,
    UnauthenticatedError,
)
from tests.actor_kinds import make_actors as make_any_actors
from tests.distributed_actors_suite import DistributedActorsSuite
from tests.processes import ROOT, environment, script, wait_until

_PACKAGES = "/opt/venv/lib/python3.11/site-packages"


@pytest.fixture(scope="session")
def environments_image(engine, actor_image):
    """The actor's image with the tests' environments in it, made as a user makes one for their own."""
    tag = f"rollcast-actor-tests-{uuid.uuid4().hex[:8]}"
    recipe = f"FROM {actor_image}\nCOPY tests {_PACKAGES}/tests\n".encode()
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(recipe)
        archive.addfile(member, io.BytesIO(recipe))
        for file in ("tests/__init__.py", "tests/environments.py", "tests/event_environments.py"):
            archive.add(ROOT / file, file)
    context.seek(0)
    engine.images.build(fileobj=context, custom_context=True, tag=tag, rm=True)
    yield tag
    engine.images.remove(tag, force=True)


@pytest.fixture
def name(engine):
    """A name of the test's own; nothing of this name is left afterwards."""
    name = f"rollcast-test-{uuid.uuid4().hex[:8]}"
    yield name
    found = containers_of(engine, name)
    networks = networks_of(engine, name)
    for left in (*found, *networks):
        left.remove(**({"force": True} if left in found else {}))
    assert [left.name for left in (*found, *networks)] == []


@pytest.fixture
def make_actors(environments_image, name):
    # one container is enough for most of what is promised
    return functools.partial(make_any_actors, "docker", image=environments_image, name=name, n_actors=1)


def containers_of(engine, name):
    filters = {"label": f"{NAME_LABEL}={name}"}
    return sorted(
        engine.containers.list(all=True, filters=filters, ignore_removed=True), key=lambda container: container.name
    )


def networks_of(engine, name):
    return engine.networks.list(filters={"label": f"{NAME_LABEL}={name}"})


class TestConformance(DistributedActorsSuite):
    pass


class TestContainers:
    def test_listen_to_their_learner_with_no_more_rights_and_room_than_given(self, engine, make_actors, name):
        limits = {"memory_limit_bytes": 512 << 20, "cpu_limit": 0.5}
        further = {"environment": {"MUJOCO_GL": "egl"}, "labels": {"owner": "me"}}
        with make_actors(batch_size=2, **limits, **further) as actors:
            actors.collect_outputs("cpu")
            (container,), (network,) = containers_of(engine, name), networks_of(engine, name)
            host = container.attrs["HostConfig"]
            assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (512 << 20, 512 << 20, 500_000_000)
            assert (host["CapDrop"], host["SecurityOpt"], host["Privileged"]) == (["ALL"], ["no-new-privileges"], False)
            assert host["Binds"] is None
            assert "MUJOCO_GL=egl" in container.attrs["Config"]["Env"]
            assert container.labels["owner"] == network.attrs["Labels"]["owner"] == "me"
            (block,) = network.attrs["IPAM"]["Config"]
            assert actors.addresses[0].startswith(f"{block['Gateway']}:")
            # others on the bridge have not got the containers' token
            with LearnerClient(actors.addresses[0]) as stranger, pytest.raises(UnauthenticatedError):
                stranger.stop()

    @pytest.mark.parametrize(("network", "host"), [("host", r"127\.0\.0\.1"), ("bridge", r"(?!0|127)[\d.]+")])
    def test_may_be_in_a_network_that_is_there(self, engine, make_actors, name, network, host):
        with make_actors(batch_size=2, network=network) as actors:
            actors.collect_outputs("cpu")
            (container,) = containers_of(engine, name)
            assert list(container.attrs["NetworkSettings"]["Networks"]) == [network]
            assert networks_of(engine, name) == []
            assert re.fullmatch(rf"{host}:\d+", actors.addresses[0])

    def test_that_are_killed_or_removed_come_back_in_their_slots(self, engine, make_actors, name, caplog):
        with make_actors(n_actors=2) as actors:
            wait_until(lambda: actors.n_actors_alive == 2, "both actors")
            removed, killed = containers_of(engine, name)
            killed.kill("SIGKILL")
            removed.remove(force=True)

            def are_back():
                actors.collect_outputs("cpu")
                now = [(info.actor_id, info.slot, info.incarnation) for info in actors.actor_infos]
                return now == [("docker-0", 0, 2), ("docker-1", 1, 2)] and actors.n_actors_alive == 2

            wait_until(are_back, "both to be back as incarnation 2")
            assert "exit code 137 (signal 9): another process killed it, or it needed more memory than" in caplog.text


def test_the_example_runs(actor_image):
    done = script(ROOT / "examples" / "containers.py", actor_image, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ steps at [\d.]+:\d+, \d+ episodes\n", done.stdout)


class TestFailures:
    def test_an_image_that_is_not_there(self, engine, name):
        with pytest.raises(ConfigurationError, match=r"image is 'no-such-image'.*docker build .*-t no-such-image"):
            make_any_actors("docker", image="no-such-image", name=name).start()

    @pytest.mark.parametrize(
        ("network", "message"),
        [("no-such-network", "docker network create no-such-network"), ("none", "expected a bridge network")],
    )
    def test_a_network_that_is_not_there_or_leads_nowhere(self, make_actors, network, message):
        with pytest.raises(ConfigurationError, match=f"network is '{network}'.*{message}"):
            make_actors(network=network).start()

    def test_an_environment_that_the_image_does_not_have(self, actor_image, make_actors):
        actors = make_actors(image=actor_image)
        with actors, pytest.raises(ActorFailedError, match=r"(?s)docker-0 failed.*exit code 2\nits last lines:.*tests"):
            # at once: the settings are no better the next time
            actors.collect_outputs("cpu")

    def test_memory_that_does_not_suffice(self, make_actors):
        # less than Python with numpy takes
        actors = make_actors(memory_limit_bytes=32 << 20, on_actor_failure="fail")
        # the engine does not see each lack of memory
        ended = (
            r"(OOMKilled: |exit code 137 .* or )it needed more memory than memory_limit_bytes = 33,554,432; raise it"
        )
        with actors, pytest.raises(ActorFailedError, match=ended):
            actors.collect_outputs("cpu")

    def test_an_engine_that_goes_away(self, engine, make_actors, name, monkeypatch, caplog):
        def answer_nothing(*_, **__):
            raise ConnectionRefusedError("Connection refused")

        with monkeypatch.context() as patch, make_actors() as actors:
            patch.setattr("docker.APIClient.containers", answer_nothing)
            with pytest.raises(ContainerEngineError, match=r"failed to list the actors' containers: .*refused"):
                actors.collect_outputs("cpu")
        assert f"containers may remain until a learner named '{name}' starts again" in caplog.text
        assert len(containers_of(engine, name)) == 1
        with make_actors():
            assert len(containers_of(engine, name)) == 1

    def test_a_start_that_fails_leaves_nothing(self, make_actors):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            actors = make_actors(addresses=[f"127.0.0.1:{taken.getsockname()[1]}"])
            with pytest.raises(AddressInUseError):
                actors.start()


def interrupt():
    signal.raise_signal(signal.SIGINT)


class TestControlC:
    """Nothing is left, which `name` looks after."""

    def test_while_it_learns(self, engine, make_actors, name):
        with pytest.raises(KeyboardInterrupt), make_actors(batch_size=2) as actors:
            actors.collect_outputs("cpu")
            assert len(containers_of(engine, name)) == 1
            interrupt()
        assert containers_of(engine, name) == networks_of(engine, name) == []

    def test_while_it_starts(self, engine, make_actors, name, monkeypatch):
        start = docker.models.containers.Container.start

        def start_then_interrupt(container):
            start(container)
            assert len(containers_of(engine, name)) == 1
            interrupt()

        monkeypatch.setattr(docker.models.containers.Container, "start", start_then_interrupt)
        with pytest.raises(KeyboardInterrupt):
            make_actors(n_actors=2).start()
        assert containers_of(engine, name) == networks_of(engine, name) == []


# Says when it has begun to learn, and stays, with actors that wait for it.
LEARNER = """
import signal, sys
from tests.actor_kinds import make_actors
with make_actors("docker", image=sys.argv[1], name=sys.argv[2], n_actors=1, reconnect_timeout_s=1.0) as actors:
    actors.collect_outputs("cpu")
    print("learning", flush=True)
    signal.pause()
"""


def test_a_killed_learners_actors_end_and_the_next_start_removes_them(engine, make_actors, environments_image, name):
    command = [sys.executable, "-c", LEARNER, environments_image, name]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as learner:
        try:
            assert learner.stdout.readline() == "learning\n"
            orphans = containers_of(engine, name)
            with make_actors():
                assert set(orphans) < set(containers_of(engine, name)), "a learner that lives keeps its own"
        finally:
            learner.kill()
    wait_until(lambda: {left.status for left in containers_of(engine, name)} == {"exited"}, "the orphans' end")
    assert containers_of(engine, name) == orphans
    with make_actors():
        assert not set(orphans) & set(containers_of(engine, name))
        assert len(networks_of(engine, name)) == 1
