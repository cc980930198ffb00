import pytest

from learner.waiting import WaitMonitor


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


def test_an_exception_ends_the_wait():
    waits = WaitMonitor()
    with pytest.raises(RuntimeError), waits.waiting_for("rollouts"):
        raise RuntimeError
    assert waits.current() == ("", 0.0)
