"""`max_policy_lag`: older trajectories are dropped and counted, others are used."""

import pytest

from rollcast.services.joining.join import JoinOffer
from tests.actor_kinds import make_actors
from tests.rollouts import make_rollout


def put(actors, *, sequence: int, policy_version: int) -> None:
    rollout = make_rollout(sequence=sequence, n_steps=4, policy_version=policy_version)
    assert actors._queue.put(rollout, is_active=lambda: True)


def test_does_not_ask_all_actors_whom_it_waits_for_after_each_stale_rollout(monkeypatch: pytest.MonkeyPatch):
    n_stale = 8
    with make_actors("remote", n_actors=0, max_policy_lag=0, batch_size=64) as actors:
        actors.broadcast_updated_policy(actors.policy.state_arrays())
        for sequence in range(1, 1 + n_stale):
            put(actors, sequence=sequence, policy_version=1)
        put(actors, sequence=1 + n_stale, policy_version=2)
        n_asked = 0
        explain_wait = actors.explain_wait

        def count_and_explain() -> str:
            nonlocal n_asked
            n_asked += 1
            return explain_wait()

        monkeypatch.setattr(actors, "explain_wait", count_and_explain)
        assert actors.next_slice(8).rollout.sequence == 1 + n_stale
        assert n_asked < n_stale - 1, "at most every quarter of a second"


def test_a_credit_names_the_oldest_policy_whose_rollout_is_not_stale_from_its_start():
    # An actor that has lost a version would otherwise play with an older one for ever.
    with make_actors("remote", n_actors=0, max_policy_lag=2, batch_size=64) as actors:
        for _ in range(4):
            actors.broadcast_updated_policy(actors.policy.state_arrays())
        intake = actors._server.intake
        agreement = intake.join(
            JoinOffer(
                actor_id="a",
                process_nonce=1,
                spaces=actors.policy.spaces,
                n_envs=1,
                network="auto",
                software_version="1",
            )
        )
        stream = intake.open_stream("a", agreement.incarnation, peer="", cancel=lambda: None)
        assert actors.policy_version == 5
        assert stream.progress().min_policy_version == 3
        stream.close(clean=True)
