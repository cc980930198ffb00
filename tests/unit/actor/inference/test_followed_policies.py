"""Policies of a learner that is followed, also when it comes back as another one."""

import contextlib
import queue

import numpy as np

from rollcast.actor.connection.backoff import backoff_delays
from rollcast.actor.inference.followed_policies import FollowedPolicies
from rollcast.services.inference.inference import weights_digest
from tests.integration.learner_fakes import serve
from tests.processes import DEADLINE_S


def state(number):
    return {"w": np.full(3, number, np.float32)}


def test_follows_a_learner_and_the_next_one_at_its_address(tmp_path):
    address, taken = f"unix:{tmp_path / 'learner'}", queue.Queue()

    def digests_after(learner, version, number):
        learner.source.publish(version, state(number))
        policy = taken.get(timeout=DEADLINE_S)
        assert policy.version == version
        np.testing.assert_array_equal(policy.state["w"], state(number)["w"])
        return policy.digests

    # of two ways, one leads nowhere
    with contextlib.closing(FollowedPolicies(f"unix:{tmp_path / 'nowhere'},{address}")) as policies:
        policies.follow(taken.put)
        policies.follow(taken.put)
        with serve(address) as learner:
            digests_after(learner, 1, 1)
            digests = digests_after(learner, 3, 3)
            assert digests == {1: weights_digest(state(1)), 3: weights_digest(state(3))}
        with serve(address) as learner:
            assert digests_after(learner, 2, 9) == {2: weights_digest(state(9))}
            digests_after(learner, 4, 4)
        # The same run, from its checkpoint: what came after that is forgotten.
        with serve(address) as learner:
            assert digests_after(learner, 2, 9) == {2: weights_digest(state(9))}


def test_a_learner_that_has_ended_is_asked_ever_less_often(tmp_path, monkeypatch):
    """It ends each subscription after its last policy."""
    address, taken, waits = f"unix:{tmp_path / 'learner'}", queue.Queue(), []

    def noted_delays():
        waits.append([])
        for delay_s in backoff_delays():
            waits[-1].append(delay_s)
            yield 0.0

    monkeypatch.setattr("rollcast.actor.inference.followed_policies.backoff_delays", noted_delays)
    with serve(address) as learner, contextlib.closing(FollowedPolicies(address)) as policies:
        learner.source.publish(1, state(1))
        learner.source.end()
        policies.follow(taken.put)
        for _ in range(8):
            taken.get(timeout=DEADLINE_S)
    (delays,) = waits
    assert delays[6] >= 2.5


def test_can_be_closed_at_once():
    FollowedPolicies("localhost:1").close()
