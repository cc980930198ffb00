"""An actor whose environments dial in: a real learner, and clients that play, die, freeze and return."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from tests.processes import (
    DEADLINE_S,
    ROOT,
    ended,
    environment,
    free_port,
    refused,
    rollcast,
    running,
    status_of,
    wait_until,
)

pytestmark = pytest.mark.slow

CLIENT = ROOT / "clients/python/cartpole.py"

DIAL_IN = "environments may dial in at "


@contextlib.contextmanager
def game(address: str, name: str, n_envs: int, *, token: str = "") -> Iterator[subprocess.Popen[str]]:
    """A client with so many CartPoles, in a process that knows grpcio and the messages alone."""
    variables = environment() | {"PYTHONPATH": f"{ROOT / 'proto'}{os.pathsep}{CLIENT.parent}", "ROLLCAST_TOKEN": token}
    command = [sys.executable, str(CLIENT), address, name, str(n_envs)]
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def learner(port: int, run_dir: Path, *options: object) -> tuple[object, ...]:
    return (
        *("learner", "learner", "--address", f"127.0.0.1:{port}", "--run-dir", run_dir),
        *("--spaces-from", "first_actor", "--envs-per-actor", 4, "--batch-size", 8, "--log-level", "INFO", *options),
    )


def actor(port: int, socket: str, *options: object) -> tuple[object, ...]:
    address = f"127.0.0.1:{port}"
    return ("actor", "--learner-address", address, "--serve-environments", socket, "--envs-per-actor", 4, *options)


def test_a_client_that_dies_freezes_or_returns_costs_nobody_else_anything(tmp_path: Path):
    port, socket = free_port(), f"unix:{tmp_path / 'play'}"
    # paced: while a client is frozen, training is not to keep the processors busy
    paced = ("--algorithm", "tests.paced_algorithm:PacedImpala", "--algorithm-kwargs", '{"update_s": 0.2}')
    forever = ("--stop-return", 1e9, *paced)
    awaited = {"steady", "doomed", "frozen"}

    def have_come() -> bool:
        line = acting.stdout.readline()
        awaited.difference_update([name for name in awaited if f"{name} dialled in" in line])
        return not awaited

    def has_said(line: str) -> bool:
        return line in acting.stdout.readline()

    def goes_on(client: LearnerClient, why: str) -> None:
        before = status_of(client).env_steps
        wait_until(lambda: status_of(client).env_steps > before + 500, f"steps after {why}")

    with (
        running(*learner(port, tmp_path / "run", *forever)) as training,
        LearnerClient(f"127.0.0.1:{port}") as client,
        running(*actor(port, socket, "--step-timeout-s", 5)) as acting,
        game(socket, "steady", 2),
    ):
        with game(socket, "doomed", 1) as doomed, game(socket, "frozen", 1) as frozen:
            wait_until(have_come, "all clients")
            goes_on(client, "the beginning")
            doomed.kill()
            wait_until(lambda: has_said("doomed is gone"), "the end of the client that was killed")
            goes_on(client, "the death of a client")
            frozen.send_signal(signal.SIGSTOP)
            wait_until(lambda: has_said("client 'frozen', environment 0: no turn arrived"), "the name of the frozen")
            goes_on(client, "a client has frozen")
            frozen.send_signal(signal.SIGCONT)
            wait_until(lambda: has_said("frozen dialled in"), "the return of the one that was frozen")
            with game(socket, "doomed", 1):
                wait_until(lambda: has_said("doomed dialled in"), "the return of the one that was killed")
                goes_on(client, "the return of both")
        assert [info.incarnation for info in client.actors()] == [1]
        assert status_of(client).rejected_rollouts == 0
        assert ended(acting, signal.SIGTERM) == 0
        assert ended(training, signal.SIGTERM) == 0


def test_a_client_ends_at_ctrl_c_without_a_traceback(tmp_path: Path):
    with game(f"unix:{tmp_path / 'play'}", "cartpole", 1) as playing:
        said = iter(playing.stdout.readline, "")
        assert any("trying again" in line for line in said)
        playing.send_signal(signal.SIGINT)
        assert playing.wait(DEADLINE_S) == 130
        assert "Traceback" not in "".join(said)


def test_an_actor_without_clients_gives_its_place_back(tmp_path: Path):
    """Others play its part of PPO's rounds, which would wait for it."""
    port, socket = free_port(), f"unix:{tmp_path / 'play'}"
    options = ("--algorithm", "ppo", "--stop-return", 1e9)
    with (
        running(*learner(port, tmp_path / "run", *options)) as training,
        LearnerClient(f"127.0.0.1:{port}") as client,
        running(*actor(port, socket)) as acting,
    ):
        with game(socket, "game", 4):
            wait_until(lambda: status_of(client).updates > 0, "an update")
        wait_until(lambda: status_of(client).actors_alive == 0, "the actor to leave")
        with running("actor", "--learner-address", f"127.0.0.1:{port}", "--envs-per-actor", 4):
            updates = status_of(client).updates
            wait_until(lambda: status_of(client).updates > updates + 1, "updates by another actor")
        with game(socket, "game", 4):
            wait_until(lambda: status_of(client).actors_alive == 1, "the actor to come back")
        assert ended(acting, signal.SIGTERM) == 0
        assert ended(training, signal.SIGTERM) == 0


class TestTrain:
    """`rollcast train` serves environments by its own actor."""

    def test_learns_from_a_client_that_dials_the_printed_address_with_its_token(self, tmp_path: Path):
        tokens = tmp_path / "tokens"
        tokens.touch(0o600)
        tokens.write_text(f"actor:{'a' * 32}\n")
        options = ("--envs-per-actor", 4, "--stop-return", 80, "--total-steps", 1_000_000, "--seed", 1)
        options = (*options, "--algorithm", "impala", "--impala.learning-rate", 0.002)
        options = (*options, "--serve-tokens-file", tokens, "--serve-batch-size", 3)
        with running(
            *("learner", "train", "--serve-environments", "127.0.0.1:0", "--run-dir", tmp_path / "run", *options)
        ) as training:
            said = iter(training.stdout.readline, "")
            address = next(line for line in said if line.startswith(DIAL_IN)).removeprefix(DIAL_IN).strip()
            with game(address, "cartpole", 4, token="a" * 32) as playing:
                assert ended(training, within_s=10 * DEADLINE_S) == 0
                assert "solved" in training.stdout.read()
                assert playing.wait(DEADLINE_S) == 0
                assert "training has ended" in playing.stdout.read()

    def test_stops_and_resumes_with_the_same_client_and_evaluator(self, tmp_path: Path):
        address, socket = f"127.0.0.1:{free_port()}", f"unix:{tmp_path / 'play'}"
        options = ("--address", address, "--envs-per-actor", 4, "--stop-return", 1e9, "--eval-interval-steps", 500)
        evaluator = ("actor", "--role", "evaluate", "--learner-address", address)
        with game(socket, "cartpole", 4) as playing, running(*evaluator):
            with running(
                *("learner", "train", "--serve-environments", socket, "--run-dir", tmp_path / "run", *options)
            ) as training:
                wait_until(lambda: status_of(address).updates > 0, "an update")
                assert ended(training, signal.SIGTERM) == 0
                said = training.stdout.read()
                assert "was lost" not in said
                assert "lost the learner" not in said
                assert "\nserve it " in said
            with running("learner", "train", "--resume", tmp_path / "run", "--stop-return", 10) as training:
                assert ended(training) == 0
                said = training.stdout.read()
                assert f"resuming {tmp_path / 'run'}: " in said
                (evaluation,) = (line for line in said.splitlines() if line.startswith("evaluation "))
                assert "(solved: 10)" in evaluation
            assert playing.wait(DEADLINE_S) == 0
            assert "training has ended" in playing.stdout.read()

    def test_says_how_to_evaluate_its_policies_and_the_commands_do_it(self, tmp_path: Path):
        socket, run_dir = f"unix:{tmp_path / 'play'}", tmp_path / "run"
        options = ("--eval-interval-steps", 100, "--eval-episodes", 2, "--stop-return", 5)
        with (
            running(*("learner", "train", "--serve-environments", socket, "--run-dir", run_dir, *options)) as training,
            game(socket, "cartpole", 4),
        ):
            said = iter(training.stdout.readline, "")
            line = next(line for line in said if line.startswith("no policy is evaluated until you start an evaluator"))
            assert " with an environment of the same spaces: rollcast actor " in line
            command = line.strip().partition(": rollcast ")[2].replace("ENV_ID", "CartPole-v1")
            with running(*command.split()):
                assert ended(training) == 0
            printed = training.stdout.read()
            assert "(solved: 5)" in printed
            assert f"serve-policy {run_dir}" in printed
        assert "give one with --env-id" in refused("evaluate", run_dir)
        rollcast("evaluate", run_dir, "--env-id", "CartPole-v1", "--n-episodes", 1).check_returncode()

    @pytest.mark.parametrize(
        "command", [("train", "--serve-environments"), ("learner", "--spaces-from", "first_actor")]
    )
    def test_settings_that_exclude_each_other_are_refused_before_anybody_is_waited_for(self, command: tuple[str, ...]):
        if command[0] == "train":
            command = (*command, "127.0.0.1:0")
        told = refused(*command, "--eval-opponents", 3)
        assert "--eval-opponents 3 without an evaluation; expected --eval-interval-s" in told
        assert "dial in" not in told
        assert "waiting" not in told

    def test_asks_for_environments_once_all_have_left(self, tmp_path: Path):
        address, socket = f"127.0.0.1:{free_port()}", f"unix:{tmp_path / 'play'}"
        options = ("--address", address, "--envs-per-actor", 4, "--algorithm", "impala", "--stop-return", 1e9)
        options += ("--serve-environments", socket, "--run-dir", tmp_path / "run")
        with running("learner", "train", *options) as training:
            with game(socket, "cartpole", 4):
                wait_until(lambda: status_of(address).updates > 0, "an update")
            asked = f"environments to dial in at {socket}: start one there"
            wait_until(lambda: status_of(address).waiting_for == asked, "its request")
            assert ended(training, signal.SIGTERM) == 0

    def test_ends_if_nobody_dials_in(self, tmp_path: Path):
        # a temporary folder that is too long for sockets makes no difference
        temporary = tmp_path / ("x" * 100)
        temporary.mkdir()
        options = ("--serve-environments", "127.0.0.1:0", "--collect-timeout-s", 1)
        told = refused("train", *options, code=1, TMPDIR=str(temporary))
        assert "no environment has dialled in at 127.0.0.1:" in told
