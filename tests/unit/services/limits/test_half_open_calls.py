import contextlib

import pytest

from rollcast.services.limits.half_open_calls import HalfOpenCalls
from rollcast.services.limits.limits import Limits
from rollcast.services.limits.refusals import Refusals
from tests.processes import wait_until


@pytest.fixture
def ended():
    return []


@pytest.fixture
def open_call(ended):
    with contextlib.ExitStack() as stack:

        def open_one(calls, name, host="ipv4:10.0.0.1", *, is_large=False):
            return stack.enter_context(calls.call(f"{host}:5", lambda: ended.append(name), is_large=is_large))

        yield open_one


def test_the_oldest_of_a_host_makes_room_for_the_next(open_call, ended):
    refusals = Refusals()
    calls = HalfOpenCalls(Limits(max_half_open_calls_per_host=2), refusals)
    open_call(calls, "elsewhere", "ipv4:10.0.0.2")
    for name in "abcd":
        open_call(calls, name)
    assert ended == ["a", "b"]
    (noted,) = refusals.lately()
    assert (noted.who, noted.limit, noted.times) == ("10.0.0.1", "max_half_open_calls_per_host", 2)


def test_the_oldest_of_all_makes_room_for_the_next(open_call, ended):
    refusals = Refusals()
    calls = HalfOpenCalls(Limits(max_half_open_calls=2), refusals)
    for number in range(4):
        open_call(calls, number, f"ipv4:10.0.0.{number}")
    assert ended == [0, 1]
    assert [(noted.who, noted.limit) for noted in refusals.lately()] == [
        ("10.0.0.1", "max_half_open_calls"),
        ("10.0.0.0", "max_half_open_calls"),
    ]


def test_call_stops_counting_once_its_request_has_come(ended):
    calls = HalfOpenCalls(Limits(max_half_open_calls=1))
    for _ in range(3):
        with calls.call("ipv4:10.0.0.1:5", lambda: ended.append("it"), is_large=False):
            pass
    calls.end_late()
    assert ended == []


def test_call_without_request_is_ended_once(open_call, ended, caplog):
    refusals = Refusals()
    calls = HalfOpenCalls(Limits(request_s=0.01, stalled_stream_s=60), refusals)
    open_call(calls, "large", is_large=True)
    open_call(calls, "small")
    wait_until(lambda: (calls.end_late(), ended)[1], "it is ended")
    calls.end_late()
    assert ended == ["small"]
    assert [noted.limit for noted in refusals.lately()] == ["request_s"]
    assert "ended 1 calls that sent no request, the last of 10.0.0.1 (request_s)" in caplog.text


def test_flood_is_logged_once(open_call, ended, caplog):
    calls = HalfOpenCalls(Limits(max_half_open_calls=1))
    for number in range(50):
        open_call(calls, number)
    assert len(ended) == 49
    assert len(caplog.records) == 1
