"""`max_policy_lag`: older trajectories are dropped and counted, others are used."""

from rollcast.services.client.client import LearnerClient
from tests.actor_kinds import make_actors
from tests.rollouts import make_rollout


def put(actors, *, sequence: int, policy_version: int) -> None:
    rollout = make_rollout(sequence=sequence, n_steps=4, policy_version=policy_version)
    assert actors._queue.put(rollout, is_active=lambda: True)


def test_drops_and_counts_old_trajectories():
    with make_actors("remote", n_actors=0, max_policy_lag=1) as actors:
        for _ in range(3):
            actors.broadcast_updated_policy(actors.policy.state_arrays())
        assert actors.policy_version == 4
        put(actors, sequence=1, policy_version=2)
        put(actors, sequence=2, policy_version=3)
        assert actors.poll_slice(8) is None
        assert actors.stale_trajectories == 2
        assert actors.poll_slice(8).rollout.sequence == 2


def test_status_counts_dropped_trajectories():
    with make_actors("remote", n_actors=0, max_policy_lag=0) as actors:
        actors.broadcast_updated_policy(actors.policy.state_arrays())
        put(actors, sequence=1, policy_version=1)
        assert actors.poll_slice(8) is None
        with LearnerClient(actors.addresses[0]) as client:
            assert client.status().stale_trajectories == 2


def test_drops_nothing_without_a_limit():
    with make_actors("remote", n_actors=0) as actors:
        for _ in range(3):
            actors.broadcast_updated_policy(actors.policy.state_arrays())
        put(actors, sequence=1, policy_version=1)
        assert actors.poll_slice(8).rollout.sequence == 1
        assert actors.stale_trajectories == 0
