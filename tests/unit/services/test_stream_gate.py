import threading

import pytest

from services.errors import NotReadyError, ThrottledError
from services.limits import Limits
from services.refusals import Refusals
from services.stream_gate import StreamGate

DEADLINE_S = 10.0
PEER = "ipv4:127.0.0.1:5"


def call(gate, *, is_stream=True, cancel=lambda: None):
    return gate.call("/rollcast.v1.Some/Call", PEER, cancel, is_stream=is_stream)


def test_it_counts_streams_drains_and_stops():
    gate = StreamGate(Limits(max_actors=1))
    streams = [call(gate) for _ in range(10)]
    for stream in streams:
        stream.__enter__()
    with pytest.raises(ThrottledError, match="10 streams are open") as refused:
        call(gate).__enter__()
    assert refused.value.limit == "max_streams"
    with call(gate, is_stream=False):
        gate.drain()
        gate.check_running()
    streams.pop().__exit__(None, None, None)
    with pytest.raises(NotReadyError, match="draining"):
        call(gate).__enter__()
    with call(gate, is_stream=False):
        gate.stop()
    with pytest.raises(NotReadyError, match="stopping"):
        gate.check_running()


def test_a_call_that_is_stuck_is_ended_and_told_of(caplog):
    refusals, ended = Refusals(), threading.Event()
    gate = StreamGate(Limits(stalled_stream_s=0.01), refusals)
    with call(gate, cancel=ended.set) as stuck, call(gate) as other:
        other.expect("do something")
        other.settle()
        stuck.expect("take a message")
        gate.start()
        assert ended.wait(DEADLINE_S)
    gate.stop()
    (throttled,) = refusals.lately()
    assert (throttled.who, throttled.limit, throttled.times) == ("ipv4:127.0.0.1", "stalled_stream_s", 1)
    assert f"ended /rollcast.v1.Some/Call from {PEER}: it did not take a message within 0.01 s" in caplog.text
