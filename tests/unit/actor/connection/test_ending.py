import threading

import pytest

from rollcast.actor.connection.ending import Ending


def test_waits_no_longer_than_asked_while_nothing_ends():
    assert not Ending(threading.Event()).wait(0.01)


@pytest.mark.parametrize("which", ["closing", "stop"])
def test_wait_ends_early_when_closed_or_stopped(which: str):
    stop = threading.Event()
    ending = Ending(stop)
    setter = threading.Timer(0.02, (ending.closing if which == "closing" else stop).set)
    setter.start()
    assert ending.wait(60.0)
    assert ending.is_set()
    setter.join()


def test_stopping_an_actor_does_not_count_as_closing():
    stop = threading.Event()
    ending = Ending(stop)
    stop.set()
    assert ending.is_set()
    assert not ending.closing.is_set()
