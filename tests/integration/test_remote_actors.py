"""Actors that connect from elsewhere: the failures that they survive, and the reasons to refuse them."""

import contextlib
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.status.status import ActorState, Phase
from tests.chaos.proxy import Proxy
from tests.processes import DEADLINE_S, completed, ended, free_port, refused, running, status_of, wait_until

pytestmark = pytest.mark.slow


def learner(port: int, run_dir: Path, *options: object) -> tuple[object, ...]:
    return (
        *("learner", "learner", "--address", f"127.0.0.1:{port}", "--run-dir", run_dir),
        *("--algorithm", "impala", "--n-rollout-steps", 16, "--torch-threads", 1),
        *("--stop-return", 1e9, "--log-level", "INFO", *options),
    )


def untold_actor(port: int, *options: object) -> tuple[object, ...]:
    return ("actor", "--learner-address", f"127.0.0.1:{port}", *options)


def actor(port: int, *options: object) -> tuple[object, ...]:
    return untold_actor(port, "--envs-per-actor", 8, *options)


def play_and_leave(port: int, client: LearnerClient, incarnation: int) -> None:
    """An actor joins, is learnt from, and is told to go."""

    def is_streaming() -> bool:
        return status_of(client).actors_alive == 1 and client.actors()[0].incarnation == incarnation

    with running(*actor(port, "--actor-id", "a")) as acting:
        wait_until(is_streaming, "the actor to stream")
        updates = status_of(client).updates
        wait_until(lambda: status_of(client).updates > updates, "an update")
        assert ended(acting, signal.SIGTERM) == 0, acting.stdout.read()
    wait_until(lambda: client.actors()[0].state is ActorState.LEFT, "the actor to have left")


def test_actors_that_do_not_fit_are_rejected_and_one_that_is_restarted_keeps_its_slot(tmp_path: Path):
    port = free_port()
    with running(*learner(port, tmp_path / "run")), LearnerClient(f"127.0.0.1:{port}") as client:
        wait_until(lambda: status_of(client).phase is Phase.TRAINING, "the learner")
        for options, message in (
            (("--env-id", "Acrobot-v1"), "SpacesMismatchError: spaces differ at 0/"),
            (("--network", "tests.networks:make_linear"), "ProtocolMismatchError: actor"),
        ):
            assert message in refused(*actor(port, *options), code=1)
            assert client.status().phase is Phase.TRAINING
        play_and_leave(port, client, incarnation=1)
        play_and_leave(port, client, incarnation=2)
        (info,) = client.actors()
        assert info.slot == 0


def test_actor_steps_as_many_environments_as_the_algorithm_wants(tmp_path: Path):
    port = free_port()
    learning = learner(port, tmp_path / "run", "--algorithm", "dqn")
    with running(*learning), LearnerClient(f"127.0.0.1:{port}") as client:
        wait_until(lambda: status_of(client).phase is Phase.TRAINING, "the learner")
        with (
            running(*untold_actor(port, "--actor-id", "untold")),
            running(*untold_actor(port, "--actor-id", "told", "--envs-per-actor", 3)),
        ):
            wait_until(
                lambda: len(client.actors()) == 2 and all(info.rollouts > 1 for info in client.actors()), "rollouts"
            )
        assert {info.actor_id: info.n_envs for info in client.actors()} == {"untold": 4, "told": 3}


def test_failing_environment_is_reported_and_other_actors_continue(tmp_path: Path):
    port = free_port()
    options = ("--env-id", "tests.environments:CountingEnv", "--batch-size", 16)
    # paced: while others fail, the healthy one is not to keep the processors busy
    options += ("--algorithm", "tests.paced_algorithm:PacedImpala", "--algorithm-kwargs", '{"update_s": 0.1}')
    with running(*learner(port, tmp_path / "run", *options)), LearnerClient(f"127.0.0.1:{port}") as client:
        wait_until(lambda: status_of(client).phase is Phase.TRAINING, "the learner")

        def error_of(name: str) -> str:
            return next((info.last_error for info in client.actors() if info.actor_id == name), "")

        with running(*actor(port, "--env-id", "tests.environments:CountingEnv", "--actor-id", "healthy")):
            for env, what in (
                ("NanEnv", r"column 0/observation holds nan at .*, of environment \d+ \(seed \d+\)"),
                ("FailingEnv", "licence"),
                ("HangingEnv", "a step .* has taken"),
            ):
                # On a busy machine a step of the others may take a while, too.
                timeout_s = 2.0 if env == "HangingEnv" else DEADLINE_S
                options = ("--env-id", f"tests.environments:{env}", "--actor-id", env, "--step-timeout-s", timeout_s)
                refused(*actor(port, *options), code=1)
                wait_until(lambda env=env: error_of(env), "the learner to hear of it")
                assert re.search(what, error_of(env)), error_of(env)
            # its actor has refused the rollout itself
            assert client.status().rejected_rollouts == 0
            updates = status_of(client).updates
            wait_until(lambda: status_of(client).updates > updates + 5, "the healthy actor to go on")


def test_learner_without_the_environment_asks_the_first_actor(tmp_path: Path):
    port = free_port()
    options = ("--spaces-from", "first_actor", "--env-id", "not.installed:here", "--total-steps", 5000)
    options = (*options, "--envs-per-actor", 8)
    with running(*learner(port, tmp_path / "run", *options)) as learning:
        with LearnerClient(f"127.0.0.1:{port}") as client:
            wait_until(lambda: "the first actor" in status_of(client).waiting_for, "the learner")
            assert client.status().phase is Phase.STARTING
        done = completed(*untold_actor(port))
        assert "8 environments" in done.stderr
        assert ended(learning) == 0
    completed("evaluate", tmp_path / "run", "--env-id", "CartPole-v1", "--n-episodes", 2)
    said = refused("evaluate", tmp_path / "run", "--n-episodes", 2)
    assert "not.installed" in said


def test_finished_learner_serves_its_policy_and_waiting_actors_join_the_next_run(tmp_path: Path):
    port = free_port()
    serving = ("--when-finished", "serve", "--resume", "auto", "--batch-size", 8)
    with (
        LearnerClient(f"127.0.0.1:{port}") as client,
        running(*actor(port)) as leaving,
        running(*actor(port, "--wait-for-next-run")) as waiting,
    ):
        with running(*learner(port, tmp_path / "run", *serving, "--total-steps", 5000)) as first:
            wait_until(lambda: status_of(client).phase is Phase.FINISHED, "the end of training")
            assert client.is_serving()
            action, version = client.act({"": np.zeros((2, 4), np.float32)})
            assert action.shape == (2,)
            assert [number for number, _ in client.subscribe_policy()] == [version], "the last one, and the end"
            assert ended(leaving) == 0
            with running(*actor(port)) as late:
                assert ended(late) == 0, "there is nothing to act for"
            saved = client.status()
            assert waiting.poll() is None
            assert ended(first, signal.SIGTERM) == 0
            assert "serving its last policy" in first.stdout.read()

        with running(*learner(port, tmp_path / "run", *serving, "--total-steps", 5000)) as again:
            wait_until(lambda: status_of(client).phase is Phase.FINISHED, "the same run, which has ended")
            assert client.status().env_steps == saved.env_steps
            assert ended(again, signal.SIGTERM) == 0

        with running(*learner(port, tmp_path / "run", *serving, "--total-steps", 10000)) as more:
            wait_until(lambda: status_of(client).phase is Phase.FINISHED, "the end of what was added")
            assert client.status().env_steps >= 10000
            assert waiting.poll() is None
            assert ended(more, signal.SIGTERM) == 0
        assert ended(waiting, signal.SIGTERM) == 0


def test_actor_that_has_lost_its_connection_at_the_end_is_told(tmp_path: Path):
    """Else it would go on trying for ten minutes."""
    port = free_port()
    with (
        contextlib.closing(Proxy(port, seed=0)) as proxy,
        running(*learner(port, tmp_path / "run")) as learning,
        LearnerClient(f"127.0.0.1:{port}") as client,
        running("actor", "--learner-address", proxy.address, "--envs-per-actor", 8, "--actor-id", "a") as acting,
    ):
        wait_until(lambda: status_of(client).updates > 2, "training")
        proxy.learner_port = free_port()
        assert proxy.inject("cut", delay_s=0.0, timeout_s=0.0)
        wait_until(lambda: client.actors()[0].state is ActorState.LOST, "the loss")
        lines = iter(learning.stdout.readline, "")
        assert any("WARNING actor a was lost: its connection broke" in line for line in lines)
        client.stop()
        assert any("waiting up to 7 s to tell the disconnected actors" in line for line in lines)
        proxy.learner_port = port
        assert ended(acting) == 0, acting.stdout.read()
        assert ended(learning) == 0
