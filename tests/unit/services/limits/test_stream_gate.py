import threading

import pytest

from rollcast.services.errors import NotReadyError, ThrottledError
from rollcast.services.limits.limits import Limits
from rollcast.services.limits.refusals import Refusals
from rollcast.services.limits.stream_gate import StreamGate
from tests.processes import DEADLINE_S

PEER = "ipv4:127.0.0.1:5"


def stream(gate, *, cancel=lambda: None):
    return gate.stream("/rollcast.v1.Some/Call", PEER, cancel)


def test_refuses_streams_above_limit_and_after_drain():
    gate = StreamGate(Limits(max_actors=1))
    streams = [stream(gate) for _ in range(10)]
    for one in streams:
        one.__enter__()
    with pytest.raises(ThrottledError, match="10 streams are open") as refused:
        stream(gate).__enter__()
    assert refused.value.limit == "max_streams"
    gate.drain()
    gate.check_running()
    streams.pop().__exit__(None, None, None)
    with pytest.raises(NotReadyError, match="draining"):
        stream(gate).__enter__()
    with gate.unary_call():
        gate.stop()
    with pytest.raises(NotReadyError, match="stopping"):
        gate.check_running()


def test_stuck_call_is_ended_and_logged(caplog):
    refusals, ended = Refusals(), threading.Event()
    gate = StreamGate(Limits(stalled_stream_s=0.01), refusals)
    with stream(gate, cancel=ended.set) as stuck, stream(gate) as other:
        other.expect("do something")
        other.settle()
        stuck.expect("take a message")
        gate.start()
        assert ended.wait(DEADLINE_S)
    gate.stop()
    (throttled,) = refusals.lately()
    assert (throttled.who, throttled.limit, throttled.times) == ("127.0.0.1", "stalled_stream_s", 1)
    assert "ended /rollcast.v1.Some/Call from 127.0.0.1:5: it did not take a message within 0.01 s" in caplog.text
