"""`rollcast replay serve` as a user meets it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.client.replay import ReplayClient
from rollcast.services.errors import RollcastError
from rollcast.services.status.status import ActorState
from tests.processes import ROOT, environment, free_port, rollcast, running, wait_until

pytestmark = pytest.mark.slow


def size_of(client: ReplayClient) -> int:
    try:
        return client.info().size
    except RollcastError:
        return 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_actors_fill_the_buffer_and_another_process_learns_from_it(tmp_path: Path, number: int):
    address = f"127.0.0.1:{free_port()}"
    options = ("--replay.sampler", "prioritized", "--replay.capacity", 20_000)
    # the spaces come from the actor, or from an environment
    options += ("--spaces-from", "first_actor") if number == signal.SIGINT else ("--env-id", "CartPole-v1")
    with running("learner", "replay", "serve", "--address", address, *options) as server:
        # it leaves the core to the process that is to learn
        paced = ("--env-id", "tests.soak.environments:paced_cartpole", "--env-kwargs", '{"step_s": 0.0005}')
        acting = ("actor", "--learner-address", address, *paced, "--envs-per-actor", 8)
        with running(*acting) as actor, ReplayClient(address) as client:
            wait_until(lambda: size_of(client) > 500, "the actor to fill the buffer", 60)
            done = subprocess.run(
                [sys.executable, ROOT / "examples" / "replay_client.py", address, "20"],
                cwd=tmp_path,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=90,
            )
            assert done.returncode == 0, done.stderr
            assert re.search(r"^20 updates, loss [\d.]+, \d+ priorities came too late$", done.stdout, re.MULTILINE)
            (batch,) = client.samples(2000, 1)
            actions = batch.substeps["0"].action
            assert 0.4 < actions.mean() < 0.6, "actors act at random"
            assert actor.poll() is None
            with LearnerClient(address) as learner:
                assert learner.status().replay.capacity == 20_000
            server.send_signal(number)
            assert server.wait(60) == (130 if number == signal.SIGINT else 0)
            assert "replay buffer: 20,000 transitions of " in server.stdout.read()


@pytest.mark.parametrize(("algorithm", "batch_size", "n_entries"), [("dqn", 64, 500), ("r2d2", 16, 120)])
def test_a_learner_serves_its_buffer(tmp_path: Path, algorithm: str, batch_size: int, n_entries: int):
    address = f"127.0.0.1:{free_port()}"
    options = ("--env-id", "CartPole-v1", "--run-dir", tmp_path / "run", "--address", address)
    with running("learner", "train", "--algorithm", algorithm, *options) as training, ReplayClient(address) as client:
        wait_until(lambda: size_of(client) > n_entries, "the actors to fill the buffer", 60)
        (batch,) = client.samples(batch_size, 1)
        assert batch.batch_size == batch_size
        state = batch.substeps["0"].initial_state
        assert (state is None) if algorithm == "dqn" else (state.shape == (batch_size, 128))
        carried = None if algorithm == "dqn" else np.zeros((2, 128), np.float32)
        with LearnerClient(address) as learner:
            learner.act({"": np.ones((2, 4), np.float32)}, deterministic=True, state=carried)
        assert carried is None or carried.any(), "Act carries the state of a policy of values"
        training.send_signal(signal.SIGTERM)
        assert training.wait(60) == 0


def test_samples_of_single_frames_have_stacks():
    address = f"127.0.0.1:{free_port()}"
    env = ("--env-id", "CartPole-v1")
    with running("learner", "replay", "serve", "--address", address, *env, "--frame-stack", 3):
        with running("actor", "--learner-address", address, *env), ReplayClient(address) as client:
            wait_until(lambda: size_of(client) > 500, "the actor to fill the buffer", 60)
            assert client.info().spaces["0"].observation.shape == (3, 4)
            (batch,) = client.samples(500, 1)
    columns = batch.substeps["0"]
    seen, following = columns.observation[""][0], columns.next_observation[""]
    assert seen.shape == (500, 3, 4)
    goes_on = ~batch.terminated[0]
    np.testing.assert_array_equal(following[goes_on, :-1], seen[goes_on, 1:])
    is_first = (seen == seen[:, :1]).all(axis=(1, 2))
    assert 0 < is_first.sum() < 100, "some begin an episode: their stacks are one frame"


def test_status_shows_actors_waiting_for_readers():
    address = f"127.0.0.1:{free_port()}"
    env = ("--env-id", "CartPole-v1")
    options = ("--replay.samples-per-insert", 1, "--batch-size", 8, "--n-rollout-steps", 4)
    with running("learner", "replay", "serve", "--address", address, *env, *options):
        with running("actor", "--learner-address", address, *env), ReplayClient(address) as client:
            wait_until(lambda: size_of(client), "the actor to fill the buffer", 60)
            # longer than an insertion waits before it asks again
            wait_until(lambda: any(wait.seconds > 0.5 for wait in client.info().waiting), "a wait that lasts")
            (wait,) = client.info().waiting
            assert wait.who == "the actors"
            assert wait.reason.startswith("an insertion of ")
            with LearnerClient(address) as learner:
                wait_until(lambda: learner.status().waiting_s > 0.5, "the server to say so, too")
                status = learner.status()
            assert status.waiting_for.startswith("the replay buffer to take rollouts in: an insertion of ")
            assert [one.who for one in status.replay.waiting] == ["the actors"]


def test_rejects_buffer_larger_than_memory_with_both_sizes():
    done = rollcast("replay", "serve", "--address", f"127.0.0.1:{free_port()}", "--replay.capacity", 10**13)
    assert done.returncode == 2
    assert "replay buffer: 10,000,000,000,000 transitions of " in done.stderr
    assert re.search(r"bytes takes [\d.]+ TB, and [\d.]+ [GM]B are available; expected .*; lower", done.stderr)


def test_rejects_impossible_arguments_in_one_line():
    done = rollcast("replay", "fetch")
    assert done.returncode == 2
    assert "expected rollcast replay serve" in done.stderr
    assert rollcast("replay", "serve", "--help").returncode == 0
    assert "--replay.capacity" in rollcast("replay", "serve", "--replay.capacity", 0).stderr


def test_buffer_begins_with_a_recording(tmp_path: Path):
    recording = tmp_path / "demo"
    recorded = rollcast("record", "--output", recording, "--rollouts", 10, "--n-rollout-steps", 8)
    assert recorded.returncode == 0, recorded.stderr
    address = f"127.0.0.1:{free_port()}"
    serving = ("learner", "replay", "serve", "--address", address, "--initial-data", recording)
    with running(*serving) as server, ReplayClient(address) as client:
        wait_until(lambda: size_of(client) > 500, "the buffer", 40)
        (batch,) = client.samples(256, 1)
        assert batch.batch_size == 256
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        assert "entries of 10 rollouts" in server.stdout.read()


def test_rejects_empty_recording(tmp_path: Path):
    (tmp_path / "demo").write_bytes(b"")
    done = rollcast("replay", "serve", "--address", f"127.0.0.1:{free_port()}", "--initial-data", tmp_path / "demo")
    assert done.returncode == 1
    assert "it is empty; expected a recording" in done.stderr
    assert "Traceback" not in done.stderr


def test_actors_with_own_network_fill_the_buffer():
    address, network = f"127.0.0.1:{free_port()}", ("--network", "tests.networks:make_linear")
    serving = ("learner", "replay", "serve", "--address", address, *network, "--envs-per-actor", 8)
    acting = ("actor", "--learner-address", address)
    with running(*serving), running(*acting, *network), ReplayClient(address) as client:
        wait_until(lambda: size_of(client) > 500, "the actor to fill the buffer", 60)
        with LearnerClient(address) as learner:
            (info,) = learner.actors()
        assert (info.state, info.n_envs) == (ActorState.STREAMING, 8)
        done = rollcast(*acting)
        assert done.returncode == 1
        assert "was started with --network 'auto', the learner trains 'tests.networks:make_linear'" in done.stderr


def test_rejects_missing_network_at_the_start():
    done = rollcast("replay", "serve", "--address", f"127.0.0.1:{free_port()}", "--network", "tests.networks:nothing")
    assert done.returncode == 2
    assert "tests.networks:nothing" in done.stderr
