import logging

import pytest

from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.queueing.stale_trajectories import FreshDestination, StaleTrajectories
from tests.rollouts import make_rollout


@pytest.mark.parametrize(("max_policy_lag", "policy_lag", "is_stale"), [(2, 2, False), (2, 3, True), (None, 99, False)])
def test_what_is_more_versions_old_is_stale(max_policy_lag: int | None, policy_lag: int, is_stale: bool):
    stale = StaleTrajectories(max_policy_lag)
    assert stale.drops(5, policy_lag=policy_lag) is is_stale
    assert stale.count == 5 * is_stale


def test_the_first_is_warned_of_and_then_one_line_a_minute(caplog: pytest.LogCaptureFixture):
    now = 1000.0
    stale = StaleTrajectories(1, clock=lambda: now)
    assert stale.drops(2, policy_lag=3)
    (first,) = caplog.messages
    assert first.startswith("dropped 2 stale trajectories since the last such warning, 2 in all: ")
    assert "3 policy versions old; expected at most max_policy_lag = 1; raise --max-policy-lag" in first
    now += 59.0
    assert stale.drops(3, policy_lag=2)
    assert len(caplog.messages) == 1
    now += 1.0
    assert stale.drops(4, policy_lag=2)
    assert caplog.messages[1].startswith("dropped 7 stale trajectories since the last such warning, 9 in all: ")
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_what_an_earlier_learner_asked_for_is_stale_and_no_reason_to_warn(caplog: pytest.LogCaptureFixture):
    stale = StaleTrajectories(None)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert stale.drops(3, policy_lag=-7)
    assert stale.count == 9
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_stale_rollout_counts_as_taken_and_its_room_is_given_back():
    queue = RolloutQueue(2)
    fresh = FreshDestination(queue, lambda rollout, n: rollout.sequence == 1 and n == 2)
    assert fresh.reserve(2)
    assert not fresh.reserve(1)
    assert fresh.put(make_rollout(sequence=1), is_active=lambda: True, n_reserved=2)
    assert queue.size == 0
    assert fresh.reserve(2)
    assert fresh.put(make_rollout(sequence=2), is_active=lambda: True, n_reserved=2)
    assert queue.get(2, 0.0).rollout.sequence == 2


def test_closed_destination_takes_no_fresh_rollout():
    fresh = FreshDestination(RolloutQueue(4), lambda rollout, n: False)
    fresh.close()
    assert not fresh.put(make_rollout(), is_active=lambda: True)


def test_without_a_limit_only_those_of_an_earlier_learner_are_stale_whatever_is_newest_by_now(caplog):
    caplog.set_level("INFO")
    StaleTrajectories(None).drop(2, policy_lag=1)
    assert caplog.messages == ["dropping trajectories that were played for an earlier learner"]
