"""Actors that connect from elsewhere: the failures that they survive, and the reasons to refuse them."""

import contextlib
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.status.status import ActorState, LearnerStatus, Phase
from tests.chaos.proxy import Proxy
from tests.processes import free_port, rollcast, running, wait_until

pytestmark = pytest.mark.slow


def learner(port: int, run_dir: Path, *options: object) -> tuple[object, ...]:
    return (
        *("learner", "learner", "--address", f"127.0.0.1:{port}", "--run-dir", run_dir),
        *("--stop-return", 1e9, "--log-level", "INFO", *options),
    )


def untold_actor(port: int, *options: object) -> tuple[object, ...]:
    return ("actor", "--learner-address", f"127.0.0.1:{port}", *options)


def actor(port: int, *options: object) -> tuple[object, ...]:
    return untold_actor(port, "--envs-per-actor", 8, *options)


def status_of(client: LearnerClient) -> LearnerStatus | None:
    try:
        return client.status()
    except RollcastError:
        return None


def updates_of(client: LearnerClient) -> int:
    status = status_of(client)
    return status.updates if status is not None else 0


def test_actor_continues_when_the_learner_is_back(tmp_path: Path):
    port = free_port()
    with running(*actor(port, "--actor-id", "phoenix")) as acting, LearnerClient(f"127.0.0.1:{port}") as client:
        with running(*learner(port, tmp_path / "first")) as first:
            wait_until(lambda: updates_of(client) > 20, "the first learner to train", 40)
            first.send_signal(signal.SIGKILL)
            first.wait(60)
        with running(*learner(port, tmp_path / "second")):
            wait_until(lambda: updates_of(client) > 20, "the second learner to train", 40)
            (info,) = client.actors()
            assert (info.actor_id, info.state, info.incarnation) == ("phoenix", ActorState.STREAMING, 1)
            assert acting.poll() is None, "the same process all along"
            status = client.status()
            assert status.rejected_rollouts == 0
            played_for_the_first = 3 * info.n_envs  # two on their way, one under way
            assert status.stale_trajectories <= played_for_the_first, "then it waits for the second learner's policy"


def play_and_leave(port: int, client: LearnerClient, incarnation: int) -> None:
    """An actor joins, is learnt from, and is told to go."""

    def is_streaming() -> bool:
        return status_of(client) is not None and [(info.incarnation, info.state) for info in client.actors()] == [
            (incarnation, ActorState.STREAMING)
        ]

    with running(*actor(port, "--actor-id", "a")) as acting:
        wait_until(is_streaming, "the actor to stream", 40)
        updates = updates_of(client)
        wait_until(lambda: updates_of(client) > updates, "an update")
        acting.send_signal(signal.SIGTERM)
        assert acting.wait(60) == 0, acting.stdout.read()
    wait_until(lambda: client.actors()[0].state is ActorState.LEFT, "the actor to have left")


def test_restarted_actor_keeps_its_slot(tmp_path: Path):
    port = free_port()
    with running(*learner(port, tmp_path / "run")), LearnerClient(f"127.0.0.1:{port}") as client:
        play_and_leave(port, client, incarnation=1)
        play_and_leave(port, client, incarnation=2)
        (info,) = client.actors()
        assert info.slot == 0


def test_actor_steps_as_many_environments_as_the_algorithm_wants(tmp_path: Path):
    port = free_port()
    learning = learner(port, tmp_path / "run", "--algorithm", "dqn")
    with running(*learning), LearnerClient(f"127.0.0.1:{port}") as client:
        wait_until(lambda: status_of(client) is not None, "the learner", 40)
        with (
            running(*untold_actor(port, "--actor-id", "untold")),
            running(*untold_actor(port, "--actor-id", "told", "--envs-per-actor", 3)),
        ):
            wait_until(
                lambda: len(client.actors()) == 2 and all(info.rollouts > 1 for info in client.actors()), "rollouts", 40
            )
        assert {info.actor_id: info.n_envs for info in client.actors()} == {"untold": 4, "told": 3}


def test_actors_end_with_training(tmp_path: Path):
    port = free_port()
    with running(*actor(port)) as acting:
        done = rollcast(*learner(port, tmp_path / "run", "--total-steps", 20000)[1:])
        assert done.returncode == 0, done.stderr
        assert acting.wait(60) == 0, acting.stdout.read()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--env-id", "Acrobot-v1"), "SpacesMismatchError: spaces differ at 0/"),
        (("--network", "tests.networks:make_linear"), "ProtocolMismatchError: actor"),
    ],
)
def test_actor_that_does_not_fit_is_rejected_and_ends(options: tuple[str, ...], message: str, tmp_path: Path):
    port = free_port()
    with running(*learner(port, tmp_path / "run")), LearnerClient(f"127.0.0.1:{port}") as client:
        wait_until(lambda: status_of(client) is not None, "the learner", 40)
        done = rollcast(*actor(port, *options))
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert client.status().phase is Phase.TRAINING


def test_failing_environment_is_reported_and_other_actors_continue(tmp_path: Path):
    port = free_port()
    options = ("--env-id", "tests.environments:CountingEnv", "--batch-size", 16)
    with running(*learner(port, tmp_path / "run", *options)), LearnerClient(f"127.0.0.1:{port}") as client:
        wait_until(lambda: status_of(client) is not None, "the learner", 40)
        with running(*actor(port, "--env-id", "tests.environments:CountingEnv", "--actor-id", "healthy")):
            for env, what in (
                ("NanEnv", r"column 0/observation holds nan at .*, of environment \d+ \(seed \d+\)"),
                ("FailingEnv", "licence"),
                ("HangingEnv", "a step .* has taken"),
            ):
                options = ("--env-id", f"tests.environments:{env}", "--actor-id", env, "--step-timeout-s", 1.0)
                done = rollcast(*actor(port, *options))
                assert done.returncode == 1
                error = next(info.last_error for info in client.actors() if info.actor_id == env)
                assert re.search(what, error), error
            # its actor has refused the rollout itself
            assert client.status().rejected_rollouts == 0
            updates = updates_of(client)
            wait_until(lambda: updates_of(client) > updates + 5, "the healthy actor to go on")


def test_own_network_trains_between_processes(tmp_path: Path):
    port = free_port()
    network = ("--network", "tests.networks:make_linear")
    with running(*actor(port, *network)) as acting:
        done = rollcast(*learner(port, tmp_path / "run", *network, "--total-steps", 20000)[1:])
        assert done.returncode == 0, done.stderr
        assert acting.wait(60) == 0
    played = rollcast("evaluate", tmp_path / "run", "--n-episodes", 2)
    assert played.returncode == 0, played.stderr


def test_learner_without_the_environment_asks_the_first_actor(tmp_path: Path):
    port = free_port()
    options = ("--spaces-from", "first_actor", "--env-id", "not.installed:here", "--total-steps", 20000)
    options = (*options, "--envs-per-actor", 8)
    with running(*learner(port, tmp_path / "run", *options)) as learning:
        with LearnerClient(f"127.0.0.1:{port}") as client:
            wait_until(lambda: status_of(client) is not None, "the learner", 40)
            assert client.status().phase is Phase.STARTING
            assert "the first actor" in client.status().waiting_for
        done = rollcast(*untold_actor(port))
        assert done.returncode == 0, done.stderr
        assert "8 environments" in done.stderr
        assert learning.wait(60) == 0
    played = rollcast("evaluate", tmp_path / "run", "--env-id", "CartPole-v1", "--n-episodes", 2)
    assert played.returncode == 0, played.stderr
    refused = rollcast("evaluate", tmp_path / "run", "--n-episodes", 2)
    assert refused.returncode == 2
    assert "not.installed" in refused.stderr


def test_finished_learner_serves_its_policy_and_waiting_actors_join_the_next_run(tmp_path: Path):
    port = free_port()
    serving = ("--when-finished", "serve", "--resume", "auto", "--batch-size", 8)
    with (
        LearnerClient(f"127.0.0.1:{port}") as client,
        running(*actor(port)) as leaving,
        running(*actor(port, "--wait-for-next-run")) as waiting,
    ):

        def phase() -> Phase | None:
            status = status_of(client)
            return None if status is None else status.phase

        with running(*learner(port, tmp_path / "run", *serving, "--total-steps", 5000)) as first:
            wait_until(lambda: phase() is Phase.FINISHED, "the end of training", 60)
            assert client.is_serving()
            action, version = client.act({"": np.zeros((2, 4), np.float32)})
            assert action.shape == (2,)
            assert [number for number, _ in client.subscribe_policy()] == [version], "the last one, and the end"
            assert leaving.wait(60) == 0
            with running(*actor(port)) as late:
                assert late.wait(60) == 0, "there is nothing to act for"
            saved = client.status()
            assert waiting.poll() is None
            first.send_signal(signal.SIGTERM)
            assert first.wait(60) == 0
            assert "serving its last policy" in first.stdout.read()

        with running(*learner(port, tmp_path / "run", *serving, "--total-steps", 5000)) as again:
            wait_until(lambda: phase() is Phase.FINISHED, "the same run, which has ended", 60)
            assert client.status().env_steps == saved.env_steps
            again.send_signal(signal.SIGTERM)
            assert again.wait(60) == 0

        with running(*learner(port, tmp_path / "run", *serving, "--total-steps", 10000)) as more:
            wait_until(lambda: phase() is Phase.FINISHED, "the end of what was added", 60)
            assert client.status().env_steps >= 10000
            assert waiting.poll() is None
            more.send_signal(signal.SIGTERM)
            assert more.wait(60) == 0
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(60) == 0


def test_actor_that_has_lost_its_connection_at_the_end_is_told(tmp_path: Path):
    """Else it would go on trying for ten minutes."""
    port = free_port()
    with (
        contextlib.closing(Proxy(port, seed=0)) as proxy,
        running(*learner(port, tmp_path / "run")) as learning,
        LearnerClient(f"127.0.0.1:{port}") as client,
        running("actor", "--learner-address", proxy.address, "--envs-per-actor", 8, "--actor-id", "a") as acting,
    ):
        wait_until(lambda: updates_of(client) > 2, "training", 40)
        proxy.learner_port = free_port()
        assert proxy.inject("cut", delay_s=0.0, timeout_s=0.0)
        wait_until(lambda: client.actors()[0].state is ActorState.LOST, "the loss")
        client.stop()
        lines = iter(learning.stdout.readline, "")
        assert any("waiting up to 7 s for actors that have lost their connection" in line for line in lines)
        proxy.learner_port = port
        assert acting.wait(60) == 0, acting.stdout.read()
        assert learning.wait(60) == 0


def test_actor_touches_its_heartbeat_while_it_waits_for_a_learner(tmp_path: Path):
    file = tmp_path / "heartbeat"
    with running("actor", "--learner-address", f"127.0.0.1:{free_port()}", "--heartbeat-file", str(file)):
        wait_until(file.is_file, "the first touch")
        os.utime(file, (0, 0))
        wait_until(lambda: file.stat().st_mtime > 0, "a touch without any learner")
