"""The lock of the interpreter changes hands less often where many threads want it."""

import contextlib
import sys

import pytest

from rollcast.services.limits.limits import Limits
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.process.switching import set_switch_interval


@pytest.fixture(autouse=True)
def restored():
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(("n_threads", "interval_s"), [(0, 0.005), (100, 0.005), (512, 0.0256), (2000, 0.1)])
def test_the_interval_grows_with_the_threads_and_is_never_shorter_than_pythons(n_threads, interval_s):
    set_switch_interval(n_threads)
    assert sys.getswitchinterval() == pytest.approx(interval_s, rel=0.01)


def test_a_server_sets_it_by_its_open_streams():
    gate = StreamGate(Limits(max_actors=1000))
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(gate.stream("/rollcast.v1.Some/Call", "ipv4:127.0.0.1:5", lambda: None))
        assert sys.getswitchinterval() == pytest.approx(0.02)
    assert sys.getswitchinterval() == pytest.approx(0.005)
