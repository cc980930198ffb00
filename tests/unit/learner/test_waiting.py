import logging
import time

import pytest

from rollcast.learner.waiting import WaitMonitor


def test_a_wait_has_a_reason_only_while_it_lasts():
    waits = WaitMonitor()
    assert waits.current() == ("", 0.0)
    with waits.waiting_for("rollouts"):
        assert waits.current()[0] == "rollouts"
        waits.explain("rollouts from local-1")
        reason, seconds = waits.current()
        assert reason == "rollouts from local-1"
        assert seconds >= 0
    assert waits.current() == ("", 0.0)
    waits.explain("too late")
    assert waits.current() == ("", 0.0)


def test_a_wait_within_another_says_how_that_one_will_end():
    waits = WaitMonitor()
    with waits.waiting_for("a batch"):
        with waits.waiting_for("rollouts"):
            waits.explain("rollouts from local-1")
            assert waits.current()[0] == "a batch, and so for rollouts from local-1"
        assert waits.current()[0] == "a batch"
        waits.explain("a batch of 3")
        assert waits.current()[0] == "a batch of 3"
    assert waits.current() == ("", 0.0)


def test_the_time_of_the_outer_wait_is_told_and_logged(monkeypatch, caplog):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    waits = WaitMonitor()
    with caplog.at_level(logging.INFO), waits.waiting_for("a batch"):
        now += 8.0
        with waits.waiting_for("rollouts"):
            waits.explain("rollouts")
            assert caplog.messages == []
            now += 4.0
            waits.explain("rollouts")
            assert waits.current()[1] == 12.0
    assert caplog.messages == ["waiting 12 s for a batch, and so for rollouts"]


def test_an_exception_ends_the_wait():
    waits = WaitMonitor()
    with pytest.raises(RuntimeError), waits.waiting_for("rollouts"):
        raise RuntimeError
    assert waits.current() == ("", 0.0)
