"""An actor that is much slower than the others, and a learner that waits for all of a round."""

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.history.history import HistoryUpdate
from tests.processes import free_port, running, status_of, wait_until

pytestmark = pytest.mark.slow

# A rollout of the slow actor takes two seconds.
TRAINING = (
    *("--env-id", "tests.environments:CountingEnv", "--algorithm", "ppo", "--hidden-sizes", "[8]"),
    *("--batch-size", 2, "--envs-per-actor", 1, "--n-rollout-steps", 100),
    *("--total-steps", 10**9, "--stop-return", 1e9, "--insecure"),
)


def is_told(update: HistoryUpdate) -> bool:
    return any(event.text.startswith("actor slow delays the others") for event in update.events)


def test_ppo_does_not_wait_for_a_slow_actor_and_learns_from_the_newest_policy_only(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    learner = ("learner", "learner", "--address", address, *TRAINING, "--run-dir", tmp_path / "run")
    actor = ("actor", "--learner-address", address, "--actor-id")
    with (
        running(*learner),
        running(*actor, "slow", "--env-id", "tests.environments:SlowEnv"),
        running(*actor, "quick", "--env-id", "tests.environments:CountingEnv"),
        LearnerClient(address) as client,
    ):
        wait_until(lambda: status_of(address).updates, "training")

        def n_of_slow() -> int:
            return sum(info.rollouts for info in client.actors() if info.actor_id == "slow")

        wait_until(lambda: client.status().updates > 2 * n_of_slow() + 4 > 5, "updates without the slow actor")
        wait_until(lambda: client.status().stale_trajectories, "what the slow actor plays comes too late")
        assert client.status().policy_lag_max == 0
        # The quick one may be late, too, on a busy machine.
        updates = client.watch_history(0.5)
        wait_until(lambda: is_told(next(updates)), "the slow actor to be told of")
