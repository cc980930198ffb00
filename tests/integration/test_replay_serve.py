"""`rollcast replay serve` as a user meets it."""

import contextlib
import re
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.client.replay import ReplayClient
from rollcast.services.errors import RollcastError
from rollcast.services.replay.replay import ReplayWaiting
from rollcast.services.status.status import ActorState
from tests.processes import (
    ROOT,
    completed,
    ended,
    free_port,
    refused,
    rollcast,
    running,
    script,
    wait_until,
)

pytestmark = pytest.mark.slow


def has(client: ReplayClient, n_entries: int) -> Callable[[], bool]:
    """Returns a condition: a buffer has more entries. While nobody answers, it has none."""

    def asked() -> bool:
        with contextlib.suppress(RollcastError):
            return client.info().size > n_entries
        return False

    return asked


def test_actors_fill_the_buffer_and_another_process_learns_from_it(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    options = ("--replay.sampler", "prioritized", "--replay.capacity", 20_000, "--spaces-from", "first_actor")
    with running("learner", "replay", "serve", "--address", address, *options) as server:
        # it leaves the core to the process that is to learn
        paced = ("--env-id", "tests.soak.environments:paced_cartpole", "--env-kwargs", '{"step_s": 0.0005}')
        acting = ("actor", "--learner-address", address, *paced, "--envs-per-actor", 8)
        with running(*acting) as actor, ReplayClient(address) as client:
            wait_until(has(client, 500), "the actor to fill the buffer")
            done = script(ROOT / "examples" / "replay_client.py", address, 20, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert re.search(r"^20 updates, loss [\d.]+, \d+ priorities came too late$", done.stdout, re.MULTILINE)
            wait_until(has(client, 2000), "the actor to fill more of it")
            (batch,) = client.samples(2000, 1)
            actions = batch.substeps["0"].action
            assert 0.4 < actions.mean() < 0.6, "actors act at random"
            assert actor.poll() is None
            with LearnerClient(address) as learner:
                assert learner.status().replay.capacity == 20_000
            size = client.info().size
            assert ended(server, signal.SIGINT) == 130
            said = server.stdout.read()
            assert "replay buffer: 20,000 transitions of " in said
            assert "a restart begins with a new buffer" in said
            lost = re.search(r"ended: the (\d+) entries in the replay buffer were in memory only, and are gone", said)
            assert lost is not None
            assert int(lost[1]) >= size
            with running("learner", "replay", "serve", "--address", address, *options):
                wait_until(has(client, 500), "the same actor to fill the next buffer")
                assert actor.poll() is None


def test_a_learner_serves_its_buffer_and_status_says_who_waits_for_it(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    options = ("--env-id", "CartPole-v1", "--run-dir", tmp_path / "run", "--address", address, "--algorithm", "r2d2")
    with running("learner", "train", *options) as training, ReplayClient(address) as client:
        wait_until(has(client, 120), "the actors to fill the buffer")
        (batch,) = client.samples(16, 1)
        assert batch.batch_size == 16
        assert batch.substeps["0"].initial_state.shape == (16, 128)
        carried = np.zeros((2, 128), np.float32)
        with LearnerClient(address) as learner:
            learner.act({"": np.ones((2, 4), np.float32)}, deterministic=True, state=carried)
            assert carried.any(), "Act carries the state of a policy of values"
            waits: list[ReplayWaiting] = []

            def are_held_back() -> bool:
                waits.extend(wait for wait in learner.status().replay.waiting if wait.who == "the actors")
                return bool(waits)

            wait_until(are_held_back, "the actors, who are faster, to be held back")
            assert waits[0].reason.startswith("an insertion of ")
        assert ended(training, signal.SIGTERM) == 0


def test_rejects_impossible_arguments_in_one_line():
    said = refused("replay", "fetch")
    assert "expected rollcast replay serve" in said
    assert rollcast("replay", "serve", "--help").returncode == 0
    assert "--replay.capacity" in rollcast("replay", "serve", "--replay.capacity", 0).stderr
    assert "--replay.min-size is 10, below" in rollcast("replay", "serve", "--insecure", "--replay.min-size", 10).stderr


def test_buffer_begins_with_a_recording(tmp_path: Path):
    recording = tmp_path / "demo"
    completed("record", "--output", recording, "--rollouts", 10, "--n-rollout-steps", 8)
    address = f"127.0.0.1:{free_port()}"
    serving = ("learner", "replay", "serve", "--address", address, "--initial-data", recording)
    with running(*serving) as server, ReplayClient(address) as client:
        wait_until(has(client, 500), "the buffer")
        (batch,) = client.samples(256, 1)
        assert batch.batch_size == 256
        assert ended(server, signal.SIGTERM) == 0
        assert "entries of 10 rollouts" in server.stdout.read()


def test_actors_with_own_network_fill_the_buffer():
    address, network = f"127.0.0.1:{free_port()}", ("--network", "tests.networks:make_linear")
    serving = ("learner", "replay", "serve", "--address", address, *network, "--envs-per-actor", 8)
    acting = ("actor", "--learner-address", address)
    with running(*serving), running(*acting, *network), ReplayClient(address) as client:
        wait_until(has(client, 500), "the actor to fill the buffer")
        with LearnerClient(address) as learner:
            (info,) = learner.actors()
        assert (info.state, info.n_envs) == (ActorState.STREAMING, 8)
        said = refused(*acting, code=1)
        assert "was started with --network 'auto', and the learner trains 'tests.networks:make_linear'" in said
