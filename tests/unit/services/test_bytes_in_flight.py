import contextlib
import threading

import pytest

from services.bytes_in_flight import BytesInFlight
from services.errors import NotReadyError
from services.limits import Limits
from services.refusals import Refusals
from tests.processes import wait_until

DEADLINE_S = 10.0


def limits(**changes):
    return Limits(**{"max_rollout_bytes": 10, "max_bytes_in_flight": 10, **changes})


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def stream(stack):
    def open_stream(room, who="a", *, cancel=lambda: None, is_active=lambda: True):
        return stack.enter_context(room.stream(who, cancel=cancel, is_active=is_active))

    return open_stream


class Holder:
    """Holds room in a thread of its own."""

    def __init__(self, stream, n_bytes):
        self.has_room = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(stream, n_bytes))
        self._thread.start()

    def _hold(self, stream, n_bytes):
        stream.hold(n_bytes)
        self.has_room.set()

    def join(self):
        self._thread.join(DEADLINE_S)
        assert self.has_room.is_set()


def test_room_is_counted_and_given_back_at_the_end(stream, stack):
    room = BytesInFlight(limits())
    first, second = stream(room), stream(room)
    first.hold(4)
    second.hold(6)
    assert room.n_bytes == 10
    first.give_back()
    first.give_back()
    assert room.n_bytes == 6
    stack.close()
    assert room.n_bytes == 0


def test_who_finds_no_room_is_held_back_in_order(stream):
    room = BytesInFlight(limits())
    streams = [stream(room, who) for who in "abc"]
    streams[0].hold(6)
    large = Holder(streams[1], 10)
    wait_until(lambda: len(room._waiting) == 1, "one waits")
    small = Holder(streams[2], 1)
    wait_until(lambda: len(room._waiting) == 2, "both wait")
    assert not small.has_room.is_set()  # there is room for it, and another asked before
    streams[0].give_back()
    large.join()
    assert not small.has_room.is_set()
    streams[1].give_back()
    small.join()
    streams[2].give_back()


def test_a_half_rollout_that_does_not_go_on_makes_room_for_others(stream, caplog):
    refusals = Refusals()
    room = BytesInFlight(limits(stalled_stream_s=0.01), refusals)
    held = {}
    held["a"] = stream(room, "a", cancel=lambda: threading.Thread(target=lambda: held["a"].give_back()).start())
    held["a"].hold(10)
    held["a"].went_on(complete=False)
    waiting = stream(room, "b")
    waiting.hold(10)
    assert ("a", "stalled_stream_s") in [(met.who, met.limit) for met in refusals.lately()]
    assert "it did not go on with a rollout of 10 bytes" in caplog.text
    waiting.give_back()


def test_a_whole_rollout_that_waits_for_the_learner_is_left_alone(stream):
    refusals, cancelled = Refusals(), threading.Event()
    room = BytesInFlight(limits(stalled_stream_s=0.01), refusals)
    first = stream(room, "a", cancel=cancelled.set)
    first.hold(10)
    first.went_on(complete=True)
    holder = Holder(stream(room, "b"), 10)
    held_back = [("b", "max_bytes_in_flight")]
    wait_until(lambda: [(met.who, met.limit) for met in refusals.lately()] == held_back, "it is told")
    assert not cancelled.is_set()
    first.give_back()
    holder.join()


def test_who_goes_away_while_waiting_is_let_go(stream):
    room = BytesInFlight(limits())
    first = stream(room)
    first.hold(10)
    with pytest.raises(NotReadyError, match=r"b was held back.*send it again"):
        stream(room, "b", is_active=lambda: False).hold(1)
    assert (room.n_bytes, len(room._waiting)) == (10, 0)
    first.give_back()
