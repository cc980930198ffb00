import threading

import pytest

from rollcast.actor.connection.ending import Ending


@pytest.mark.parametrize("which", ["closing", "stop"])
def test_wait_ends_early_when_closed_or_stopped(which: str):
    stop = threading.Event()
    ending = Ending(stop)
    assert not ending.wait(0.01), "nothing ends yet"
    setter = threading.Timer(0.02, (ending.closing if which == "closing" else stop).set)
    setter.start()
    assert ending.wait(60.0)
    assert ending.is_set()
    setter.join()
    assert ending.closing.is_set() is (which == "closing")
