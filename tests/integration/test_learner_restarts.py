"""`rollcast learner` goes and comes back; its actors, which it has not started, wait for it."""

import signal
from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from tests.processes import ended, free_port, running, status_of, wait_until

pytestmark = pytest.mark.slow


# Its actors have places for what they play, and play none for rollouts that they send again.
PPO = (
    *("--algorithm", "ppo", "--n-rollout-steps", 16, "--batch-size", 8, "--ppo.minibatch-steps", 64),
    *("--ppo.n-epochs", 1),
    *("--hidden-sizes", 16, "--torch-threads", 1),
    # leaves the cores to others
    *("--env-id", "tests.soak.environments:paced_cartpole", "--env-kwargs", '{"step_s": 0.0005}'),
)


def wait_for_updates(address: str, n_updates: int = 5) -> None:
    wait_until(lambda: status_of(address).updates > n_updates, "updates")


def test_actor_continues_with_the_next_learner_whether_the_last_one_was_ended_or_killed(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    learner = ("learner", "learner", "--address", address, "--stop-return", 1e9, *PPO)
    with running("actor", "--learner-address", address, "--envs-per-actor", 8, "--actor-id", "phoenix") as actor:
        with running(*learner, "--run-dir", tmp_path / "ended") as first:
            wait_for_updates(address)
            assert ended(first, signal.SIGTERM) == 0
            assert "its actors wait for the next learner" in first.stdout.read()
        for name in ("killed", "stopped"):
            with running(*learner, "--run-dir", tmp_path / name) as following, LearnerClient(address) as client:
                wait_for_updates(address)
                now = client.status()
                (info,) = client.actors()
                assert (info.actor_id, info.incarnation) == ("phoenix", 1), "the same process"
                assert now.rejected_rollouts == 0
                played_for_the_last = 3 * info.n_envs  # two on their way, one under way
                assert now.stale_trajectories <= played_for_the_last, "then it waits for this learner's policy"
                if name == "killed":
                    assert ended(following, signal.SIGKILL) == -signal.SIGKILL
                    continue
                client.stop()
                # unlike a signal, this is the end of training
                assert ended(following) == 0
                assert ended(actor) == 0
    for name in ("ended", "stopped"):
        assert (tmp_path / name / "policy_last.safetensors").is_file()


def test_an_actor_that_comes_while_another_is_frozen_plays_in_its_place(tmp_path: Path):
    """The frozen one holds all places of the round; for the learner it is there until its keepalive pings are late."""
    address = f"127.0.0.1:{free_port()}"
    learner = ("learner", "learner", "--address", address, "--run-dir", tmp_path / "run", "--stop-return", 1e9)
    actor = ("actor", "--learner-address", address, "--actor-id")
    with running(*learner, *PPO), running(*actor, "frozen") as frozen:
        wait_for_updates(address)
        frozen.send_signal(signal.SIGSTOP)
        with running(*actor, "next"):
            n_updates = status_of(address).updates
            wait_for_updates(address, n_updates + 10)
