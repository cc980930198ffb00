"""Wrong options of actors in containers, found before there is one; tests/e2e/test_docker_actors.py has an engine."""

import contextlib
import sys
from unittest.mock import MagicMock

import pytest

from rollcast.learner.actors import docker
from rollcast.learner.actors.docker import DockerDistributedActors
from rollcast.learner.actors.docker_containers import ContainerPlan, DockerContainers
from rollcast.services.errors import ActorFailedError, ConfigurationError, ContainerEngineError
from tests.actor_kinds import make_actors


def make_docker_actors(**options: object) -> DockerDistributedActors:
    policy = make_actors("sequential").policy
    return DockerDistributedActors(
        "CartPole-v1", policy, **({"n_actors": 2} | options), n_rollout_steps=4, batch_size=4
    )


@pytest.mark.parametrize("atari", [True, False])
def test_containers_are_told_of_atari_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, atari: bool):
    containers = MagicMock()
    monkeypatch.setattr(docker, "connect_to_engine", MagicMock())
    monkeypatch.setattr(docker, "DockerRun", MagicMock())
    monkeypatch.setattr(docker, "DockerContainers", containers)
    with make_docker_actors(atari=atari, network="host"):
        (plans, _), _ = containers.call_args
    assert ["--atari" in plan.arguments for plan in plans] == [atari] * 2


@pytest.mark.parametrize(
    ("exit_code", "has_rollouts", "ends"), [(1, False, True), (1, True, False), (137, False, False)]
)
def test_containers_that_all_fail_before_the_first_rollout_end_the_run(exit_code: int, has_rollouts: bool, ends: bool):
    run = MagicMock()
    run.name = "run"
    run.client.containers.create.side_effect = lambda *_, name, **__: MagicMock(id=name)
    container = run.client.containers.get.return_value
    container.attrs = {"State": {"ExitCode": exit_code, "OOMKilled": False}}
    container.logs.return_value = b"EnvironmentFailedError: the pole is broken"
    run.states.return_value = {"run-0": "exited", "run-1": "exited"}
    plan = {"image": "i", "arguments": (), "environment": {}, "network": "host"}
    plans = [
        ContainerPlan(actor_id=name, **plan, memory_limit_bytes=None, cpu_limit=None)
        for name in ("docker-0", "docker-1")
    ]
    reports: list[str] = []
    containers = DockerContainers(
        plans,
        run,
        max_restarts=5,
        on_exit=lambda _, end: reports.append(end.report),
        has_rollouts=lambda: has_rollouts,
    )
    containers.start()
    refused = pytest.raises(ActorFailedError, match=r"all 2 actors failed before the first rollout.*(?s:.*)the pole is")
    with refused if ends else contextlib.nullcontext():
        containers.look_after()
    assert len(reports) == 2


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:1", "nonsense://x"])
def test_an_engine_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, host: str):
    monkeypatch.setenv("DOCKER_HOST", host)
    actors = make_docker_actors()
    with pytest.raises(ContainerEngineError, match=f"no Docker engine answers at {host}: .*; start it, or correct"):
        actors.start()
    actors.stop()


def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(ConfigurationError, match=r"expected the extra 'docker'; install it: .*\[docker\]'"):
        make_docker_actors().start()


def test_another_system_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigurationError, match=r"on Linux only, and this is darwin: .* RemoteDistributedActors"):
        make_docker_actors().start()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_actors": 0}, "n_actors is 0; expected at least 1"),
        ({"name": "-x"}, "name is '-x'; expected at most 64 letters"),
        ({"name": "a b"}, "name is 'a b'"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes is 0; expected more than 0"),
        ({"cpu_limit": -0.5}, "cpu_limit is -0.5; expected more than 0"),
        ({"env_kwargs": {"factory": object}}, "env_kwargs are .*, which JSON cannot represent"),
        ({"actor_env_seeds": [1]}, "actor_env_seeds has 1 entries; expected n_actors = 2"),
    ],
)
def test_impossible_arguments_are_refused(options: dict[str, object], message: str):
    with pytest.raises(ConfigurationError, match=message):
        make_docker_actors(**options)
