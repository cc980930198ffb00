"""The same seeds, the same policy: in this process, in others, and over TCP, however fast anybody is."""

import hashlib
import re
from pathlib import Path

import pytest
import safetensors.numpy

from tests.processes import free_port, rollcast, running

pytestmark = pytest.mark.slow

# Two actors of four environments make a batch; 100 updates of 2 * 4 * 8 steps.
RUN = (
    *("--deterministic", "--seed", 5, "--env-id", "CartPole-v1", "--envs-per-actor", 4, "--batch-size", 8),
    *("--n-rollout-steps", 8, "--total-steps", 100 * 64, "--stop-return", 1e9),
)


def digest_of(run: Path) -> str:
    arrays = safetensors.numpy.load_file(run / "policy_last.safetensors")
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + arrays[name].tobytes())
    return digest.hexdigest()


def trained(run: Path, *options: object) -> str:
    done = rollcast("train", *RUN, "--n-actors", 2, "--run-dir", run, *options)
    assert done.returncode == 0, done.stderr
    assert int(re.search(r"^updates +(\d+)", done.stdout, re.MULTILINE)[1]) >= 100
    return digest_of(run)


def trained_remotely(run: Path) -> str:
    address = f"127.0.0.1:{free_port()}"
    acting = ("actor", "--learner-address", address, "--env-id", "CartPole-v1")
    with running(*acting, "--actor-id", "one"), running(*acting, "--actor-id", "two"):
        done = rollcast("learner", *RUN, "--address", address, "--run-dir", run)
        assert done.returncode == 0, done.stderr
    return digest_of(run)


def test_three_kinds_of_actors_three_times_in_a_row(tmp_path: Path):
    digests = {}
    for number in range(3):
        digests["sequential", number] = trained(tmp_path / f"sequential-{number}", "--actor-kind", "sequential")
        digests["subprocess", number] = trained(tmp_path / f"subprocess-{number}")
        digests["remote", number] = trained_remotely(tmp_path / f"remote-{number}")
    assert len(set(digests.values())) == 1, digests


def test_another_seed_gives_another_policy(tmp_path: Path):
    assert trained(tmp_path / "five") != trained(tmp_path / "six", "--seed", 6)


def test_without_it_nobody_plays_in_step(tmp_path: Path):
    """The bound of the test above is one that only the mode holds: actors that play ahead give other policies."""
    free = {trained(tmp_path / f"free-{number}", "--no-deterministic") for number in range(2)}
    assert trained(tmp_path / "in-step") not in free


def test_what_cannot_be_deterministic_is_refused(tmp_path: Path):
    for options, message in (
        (("--algorithm", "dqn"), "--deterministic with --algorithm dqn"),
        (("--batch-size", 9), "batch_size is 9, and an actor plays 4 trajectories at once"),
    ):
        done = rollcast("train", *RUN, "--n-actors", 2, "--run-dir", tmp_path / "run", *options)
        assert done.returncode == 2
        assert message in done.stderr
