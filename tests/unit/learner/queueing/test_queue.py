import logging
import math
import threading

import numpy as np
import pytest

from rollcast.learner.queueing.queue import RolloutQueue, RolloutSlice, queue_capacity
from rollcast.learner.queueing.stale_trajectories import FreshDestination, StaleTrajectories
from rollcast.services.errors import ConfigurationError
from rollcast.services.process import waiting
from tests.batches import with_columns
from tests.processes import DEADLINE_S, wait_until
from tests.rollouts import always, make_rollout


def test_first_in_first_out_in_slices():
    queue = RolloutQueue(10)
    queue.put(make_rollout(sequence=1, n_envs=3), is_active=always)
    queue.put(make_rollout(sequence=2, n_envs=2), is_active=always)
    taken = [queue.get(2, 0), queue.get(2, 0), queue.get(2, 0)]
    assert [(s.rollout.sequence, s.start, s.stop) for s in taken if s] == [(1, 0, 2), (1, 2, 3), (2, 0, 2)]
    assert queue.size == 0
    assert queue.get(1, 0) is None


def test_slice_as_a_rollout_has_the_states_and_frames_of_its_trajectories():
    state, frames = np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(12, dtype=np.float32).reshape(3, 1, 4)
    rollout = with_columns(make_rollout(n_envs=3, initial_state=state), previous_observation={"": frames})
    cut = RolloutSlice(rollout, 1, 3).to_rollout().substeps["0"]
    np.testing.assert_array_equal(cut.initial_state, state[1:])
    np.testing.assert_array_equal(cut.previous_observation[""], frames[1:])


def test_slice_as_a_rollout_has_the_versions_of_its_trajectories():
    versions = np.arange(9).reshape(3, 3)
    cut = RolloutSlice(make_rollout(n_envs=3, policy_versions=versions), 1, 3).to_rollout()
    np.testing.assert_array_equal(cut.policy_versions, versions[:, 1:])


def test_put_gives_up_when_its_stream_has_gone():
    queue = RolloutQueue(2)
    queue.put(make_rollout(sequence=1), is_active=always)
    assert not queue.put(make_rollout(sequence=2), is_active=lambda: False)
    assert queue.size == 2


def test_an_offer_waits_without_a_thread_and_is_told_when_its_turn_has_come():
    queue, told = RolloutQueue(2), []
    turns = [queue.offer(make_rollout(sequence=i), decided=lambda i=i: told.append(i)) for i in range(1, 5)]
    assert [turn.is_in for turn in turns] == [True, None, None, None]
    queue.withdraw(turns[1])
    assert turns[1].is_in is False
    assert queue.get(2, 0).rollout.sequence == 1
    assert ([turn.is_in for turn in turns], told) == ([True, False, True, None], [3])
    queue.withdraw(turns[2])
    assert turns[2].is_in is True, "it is too late"
    queue.close()
    assert (turns[3].is_in, told) == (False, [3, 4])
    assert queue.offer(make_rollout(sequence=5), decided=lambda: None).is_in is False


def test_close_refuses_and_wakes():
    queue = RolloutQueue(2)
    queue.put(make_rollout(sequence=1), is_active=always)
    accepted = []
    thread = threading.Thread(target=lambda: accepted.append(queue.put(make_rollout(sequence=2), is_active=always)))
    thread.start()
    queue.close()
    thread.join(DEADLINE_S)
    assert accepted == [False]
    assert queue.get(2, 0) is not None, "what was accepted can still be taken"
    assert not queue.put(make_rollout(sequence=3), is_active=always)


def wait_in_thread(queue: RolloutQueue, enough: int) -> tuple[threading.Thread, list[RolloutSlice | None]]:
    taken: list[RolloutSlice | None] = []
    thread = threading.Thread(target=lambda: taken.append(queue.get(9, 20, enough=enough)))
    thread.start()
    return thread, taken


def test_a_consumer_is_woken_once_there_is_enough():
    queue = RolloutQueue(4)
    consumer, taken = wait_in_thread(queue, 3)
    queue.put(make_rollout(sequence=1), is_active=always)
    consumer.join(0.1)
    assert consumer.is_alive(), "two of three"
    queue.put(make_rollout(sequence=2), is_active=always)
    consumer.join(DEADLINE_S)
    assert [piece.rollout.sequence for piece in taken if piece] == [1]


def test_a_consumer_takes_less_than_enough_from_a_queue_where_somebody_waits_for_room():
    queue = RolloutQueue(2)
    consumer, taken = wait_in_thread(queue, 9)
    queue.put(make_rollout(sequence=1), is_active=always)
    wait_until(lambda: queue.reserve(1), "the consumer to wait, so that there is more room")
    queue.release(1)
    for sequence in range(2, 6):
        queue.put(make_rollout(sequence=sequence), is_active=always)
    assert consumer.is_alive()
    assert queue.size == 10, "what the consumer waits for is no burden"
    producer = threading.Thread(target=queue.put, args=(make_rollout(sequence=6),), kwargs={"is_active": always})
    producer.start()
    consumer.join(DEADLINE_S)
    assert [piece.rollout.sequence for piece in taken if piece] == [1]
    while queue.get(9, 0):
        pass
    producer.join(DEADLINE_S)
    assert not producer.is_alive()


def test_a_consumer_gets_what_is_there_when_its_time_is_over():
    queue = RolloutQueue(4)
    queue.put(make_rollout(sequence=1), is_active=always)
    assert queue.get(9, 0.01, enough=3).rollout.sequence == 1
    assert queue.get(9, 0.01, enough=3) is None


@pytest.mark.parametrize(
    ("batch_size", "factor", "capacity"),
    [(100, 1.1, 110), (64, 1.0, 64), (3, 0.5, 2), (10, 0.3, 3), (1, 0.01, 1), (100, np.float32(1.5), 150), (7, 2, 14)],
)
def test_capacity_is_the_factor_times_the_batch_rounded_up(batch_size: int, factor: float, capacity: int):
    assert queue_capacity(batch_size, factor) == capacity


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_factor_that_is_no_number_above_zero_is_refused(factor: float):
    with pytest.raises(ConfigurationError, match=f"queue_out_of_sync_factor is {factor}; expected a number above 0"):
        queue_capacity(64, factor)


def test_wakes_only_the_thread_whose_rollout_has_room(monkeypatch: pytest.MonkeyPatch):
    """A thread asks whether its stream is open each time before it waits, so once if it is never woken for nothing."""
    monkeypatch.setattr(waiting, "LOOK_S", DEADLINE_S)
    queue, n_waiting = RolloutQueue(2), 30
    n_waits = [0] * n_waiting
    queue.put(make_rollout(sequence=1), is_active=always)

    def put(i: int) -> None:
        def is_active() -> bool:
            n_waits[i] += 1
            return True

        assert queue.put(make_rollout(sequence=2 + i), is_active=is_active)

    threads = [threading.Thread(target=put, args=(i,)) for i in range(n_waiting)]
    for i, thread in enumerate(threads):
        thread.start()
        wait_until(lambda i=i: (queue.n_waiting, n_waits[i]) == (i + 1, 1), "the thread to wait for its turn")
    for left in reversed(range(n_waiting)):
        assert queue.get(1, 0) is not None
        assert queue.n_waiting == left + 1, "half a rollout is no room"
        assert queue.get(1, 0) is not None
        wait_until(lambda left=left: (queue.n_waiting, queue.size) == (left, 2), "the next thread to get in")
    for thread in threads:
        thread.join(DEADLINE_S)
    assert n_waits == [1] * n_waiting


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


@pytest.mark.parametrize(("max_policy_lag", "n_lines"), [(0, 0), (1, 1)])
def test_a_first_rollout_in_rounds_is_no_reason_to_warn(
    caplog: pytest.LogCaptureFixture, max_policy_lag: int, n_lines: int
):
    stale = StaleTrajectories(max_policy_lag)
    assert stale.drops(3, policy_lag=2, is_first=True)
    assert (stale.count, len(caplog.messages)) == (3, n_lines)
    assert stale.drops(3, policy_lag=2)
    assert len(caplog.messages) == 1


def test_a_rollout_for_which_a_first_one_came_in_time_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture):
    stale = StaleTrajectories(0)
    assert not stale.drops(3, policy_lag=0, is_first=True)
    assert stale.drops(2, policy_lag=1)
    assert (stale.count, caplog.messages) == (2, [])
    assert stale.drops(2, policy_lag=1)
    assert caplog.messages[0].startswith("dropped 1 stale trajectories since the last such warning, 4 in all: ")


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
