import contextlib
import threading

import pytest

from rollcast.services.errors import NotReadyError
from rollcast.services.limits.bytes_in_flight import BytesInFlight
from rollcast.services.limits.limits import Limits
from rollcast.services.limits.refusals import Refusals
from rollcast.services.process import waiting
from tests.processes import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow


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

    def __init__(self, stream, n_bytes, *, completes=True):
        self.has_room = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(stream, n_bytes, completes))
        self._thread.start()

    def _hold(self, stream, n_bytes, completes):
        stream.hold(n_bytes, completes=completes)
        self.has_room.set()

    def join(self):
        self._thread.join(DEADLINE_S)
        assert self.has_room.is_set()


def test_room_is_counted_and_given_back_at_the_end(stream, stack):
    room = BytesInFlight(limits())
    first, second = stream(room), stream(room)
    first.hold(4, completes=True)
    second.hold(6, completes=True)
    assert room.n_bytes == 10
    first.give_back()
    first.give_back()
    assert room.n_bytes == 6
    stack.close()
    assert room.n_bytes == 0


def test_streams_without_room_wait_in_order_of_asking(stream):
    room = BytesInFlight(limits())
    streams = [stream(room, who) for who in "abc"]
    streams[0].hold(6, completes=True)
    large = Holder(streams[1], 10)
    wait_until(lambda: room.n_waiting == 1, "one waits")
    small = Holder(streams[2], 1)
    wait_until(lambda: room.n_waiting == 2, "both wait")
    assert not small.has_room.is_set()  # there is room for it, and another asked before
    streams[0].give_back()
    large.join()
    assert not small.has_room.is_set()
    streams[1].give_back()
    small.join()
    streams[2].give_back()


def test_declared_bytes_take_no_room(stream):
    room = BytesInFlight(limits(max_bytes_in_flight=20))
    for number in range(40):
        stream(room, f"hostile-{number}").hold(0, completes=False)
    assert room.n_bytes == 0
    honest = stream(room, "honest")
    for _ in range(4):
        honest.hold(5, completes=False)
        honest.hold(5, completes=True)
        honest.give_back()


def test_half_sent_rollouts_leave_room_for_whole_ones_and_one_of_them_always_finishes(stream):
    room = BytesInFlight(limits(max_bytes_in_flight=30))
    streams = [stream(room, str(number)) for number in range(6)]
    for half in streams[:4]:
        half.hold(5, completes=False)  # 20 of 20: all that half-sent rollouts may have
    streams[4].hold(10, completes=True)
    waiting = [Holder(half, 5) for half in streams[:4]]
    wait_until(lambda: room.n_waiting == 4, "all wait for the whole one to leave")
    streams[4].give_back()
    wait_until(lambda: sum(half.has_room.is_set() for half in waiting) == 2, "two of them are whole")
    for number in sorted(range(4), key=lambda number: not waiting[number].has_room.is_set()):
        waiting[number].join()
        streams[number].give_back()
    assert room.n_bytes == 0


def test_first_of_half_sent_rollouts_that_block_each_other_finishes(stream):
    room = BytesInFlight(limits())  # none may be half sent, but for one
    first, second = stream(room, "a"), stream(room, "b")
    first.hold(4, completes=False)
    blocked = Holder(second, 4, completes=False)
    wait_until(lambda: room.n_waiting == 1, "the second waits")
    first.hold(3, completes=False)
    first.hold(3, completes=True)
    assert not blocked.has_room.is_set()
    first.give_back()
    blocked.join()
    second.hold(6, completes=True)
    assert room.n_bytes == 10


def ended_after(look, cancelled):
    wait_until(lambda: (look(), cancelled.is_set())[1], "its stream is ended")


@pytest.mark.parametrize("n_bytes", [0, 4])
def test_stalled_rollout_is_ended_even_if_no_stream_waits(stream, caplog, n_bytes):
    refusals, cancelled = Refusals(), threading.Event()
    room = BytesInFlight(limits(stalled_stream_s=0.01), refusals)
    stream(room, "a", cancel=cancelled.set).hold(n_bytes, completes=False)
    ended_after(room.end_stalled, cancelled)
    assert [(met.who, met.limit) for met in refusals.lately()] == [("a", "stalled_stream_s")]
    assert f", after {n_bytes} bytes of it" in caplog.text


def test_rollout_that_trickles_in_is_ended(stream):
    cancelled = threading.Event()
    room = BytesInFlight(limits(max_bytes_in_flight=1 << 20, stalled_stream_s=0.01))
    trickling = stream(room, "a", cancel=cancelled.set)

    def trickle():
        trickling.hold(1, completes=False)
        room.end_stalled()

    ended_after(trickle, cancelled)


@pytest.mark.parametrize("half_sent_bytes", [0, 5], ids=["a whole rollout", "the rest of one"])
def test_neither_who_waits_for_the_learner_nor_who_is_held_back_is_taken_for_stalled(stream, half_sent_bytes):
    refusals, cancelled = Refusals(), threading.Event()
    room = BytesInFlight(limits(max_bytes_in_flight=10 + 2 * half_sent_bytes, stalled_stream_s=0.01), refusals)
    first, second = stream(room, "a", cancel=cancelled.set), stream(room, "b", cancel=cancelled.set)
    if half_sent_bytes:
        second.hold(half_sent_bytes, completes=False)
    first.hold(10, completes=True)
    holder = Holder(second, 6, completes=not half_sent_bytes)
    held_back = [("b", "max_bytes_in_flight")]
    wait_until(lambda: [(met.who, met.limit) for met in refusals.lately()] == held_back, "it is told")
    room.end_stalled()
    assert not cancelled.is_set()
    first.give_back()
    holder.join()


def test_stream_that_ends_while_waiting_raises(stream):
    room = BytesInFlight(limits())
    first = stream(room)
    first.hold(10, completes=True)
    with pytest.raises(NotReadyError, match=r"b waited.*send the rollout again"):
        stream(room, "b", is_active=lambda: False).hold(1, completes=True)
    assert (room.n_bytes, room.n_waiting) == (10, 0)
    first.give_back()


def test_room_that_comes_free_wakes_only_the_stream_whose_turn_it_is(stream, monkeypatch):
    """A waiting stream asks whether its caller is there each time it wakes up."""
    monkeypatch.setattr(waiting, "LOOK_S", 60.0)
    room, n_waiting = BytesInFlight(limits()), 20
    n_woken = [0] * n_waiting

    def asks(i):
        def is_active():
            n_woken[i] += 1
            return True

        return is_active

    holders = [stream(room, "first")]
    holders[0].hold(10, completes=True)
    holding = []
    for i in range(n_waiting):
        holders.append(stream(room, str(i), is_active=asks(i)))
        holding.append(Holder(holders[-1], 10))
        wait_until(lambda i=i: room.n_waiting == i + 1, "the stream waits")
    for holder, next_one in zip(holders, holding, strict=False):
        holder.give_back()
        next_one.join()
    holders[-1].give_back()
    # once for the room, and once as the next in turn, when the one before has just taken it
    assert max(n_woken) <= 2
    assert room.n_bytes == 0
