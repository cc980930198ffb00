import threading

import pytest

from rollcast.learner.queueing.queue import RolloutQueue
from tests.budgets.stage import Stage, StuckError
from tests.budgets.table import totals
from tests.rollouts import make_rollout


def always() -> bool:
    return True


def test_a_wait_ends_at_its_deadline_as_soon_as_nobody_can_go_on():
    with Stage() as stage:
        began = stage.now
        assert RolloutQueue(4).get(1, 3600.0) is None
        assert stage.now == began + 3600.0


def test_who_waits_goes_on_when_another_has_made_room_and_only_that_is_a_wake_up():
    with Stage() as stage, stage.work.counting():
        queue = RolloutQueue(2)
        came = []
        stage.spawn(lambda: came.extend(queue.put(make_rollout(n), is_active=always) for n in (1, 2)), role="actor")
        stage.rest()
        assert came == [True]
        queue.get(2, 0.0)
        stage.rest()
        assert came == [True, True]
    assert totals(stage.work.counts["learner"])["threads woken"] == 1
    assert totals(stage.work.counts["actor"])["threads woken"] == 0


def test_threads_that_wait_for_each_other_are_an_error():
    with Stage() as stage, pytest.raises(StuckError, match="1 threads wait"):
        stage.wait_until(lambda: False)


def test_threads_that_wait_end_with_the_stage():
    with Stage() as stage:
        stage.spawn(lambda: stage.wait_until(lambda: False), role="actor")
        stage.rest()
        during = set(threading.enumerate())
    assert threading.current_thread() in during.intersection(threading.enumerate()) < during
