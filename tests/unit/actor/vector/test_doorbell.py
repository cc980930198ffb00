import multiprocessing
import os
import threading

import pytest

from rollcast.actor.vector import doorbell
from rollcast.actor.vector.doorbell import N_WORDS, Doorbell, PeerGoneError, WordIndex, hear_any


@pytest.fixture(params=[True, False], ids=["stores in order", "the bell orders"])
def order(request, monkeypatch):
    monkeypatch.setattr(doorbell, "_STORES_IN_ORDER", request.param)


@pytest.fixture
def pair(order):
    """The two ends of worker 1, and their connections."""
    words = memoryview(bytearray(2 * N_WORDS * 8)).cast("q")
    ours, theirs = multiprocessing.Pipe()
    never, sentinel = os.pipe()
    yield Doorbell(words, 1, ours, never), Doorbell(words, 1, theirs), words, ours, theirs, sentinel
    for connection in (ours, theirs):
        connection.close()
    os.close(never), os.close(sentinel)


def test_whoever_sleeps_is_woken(pair):
    parent, worker, words, *_ = pair

    def serve():
        for number in range(1, 20):
            worker.hear(number - 1)
            words[N_WORDS + WordIndex.RESULT] = number
            worker.tell(number)

    thread = threading.Thread(target=serve)
    thread.start()
    for number in range(1, 20):
        parent.tell(number)
        assert parent.hear(number - 1, 10.0)
        assert words[N_WORDS + WordIndex.RESULT] == number
    thread.join()
    assert words[N_WORDS + WordIndex.COMMAND] == words[N_WORDS + WordIndex.DONE] == 19
    assert not words[N_WORDS + WordIndex.PARENT_SLEEPS]
    assert not any(words[:N_WORDS]), "worker 0's"


def test_time_runs_out(pair):
    parent, *_ = pair
    assert not parent.hear(0, 0.01)
    assert not hear_any([(parent, 0)], 0.01)


def test_a_peer_that_has_gone(pair):
    parent, worker, _, _, theirs, _ = pair
    worker.tell(1)
    theirs.close()
    assert parent.hear(0, 1.0), "its last word counts"
    with pytest.raises(PeerGoneError):
        parent.hear(1, 1.0)
    assert hear_any([(parent, 1)], 1.0)
    with pytest.raises(PeerGoneError):
        parent.ring()


def test_a_peer_whose_children_keep_its_end_open(pair):
    parent, _, _, _, _, sentinel = pair
    os.write(sentinel, b"\0")
    with pytest.raises(PeerGoneError):
        parent.hear(0, 5.0)


def test_the_first_of_several(pair):
    parent, worker, *_ = pair
    words = memoryview(bytearray(2 * N_WORDS * 8)).cast("q")
    ours, theirs = multiprocessing.Pipe()
    never, sentinel = os.pipe()
    other = Doorbell(words, 0, ours, never)
    worker.tell(1)
    worker.ring()
    assert hear_any([(other, 0), (parent, 0)], 5.0) == [1]
    assert parent.has_changed(0)
    assert not other.has_changed(0)
    timer = threading.Timer(0.02, lambda: Doorbell(words, 0, theirs).tell(1))
    timer.start()
    parent.hear(0)
    assert hear_any([(other, 0)], 5.0) == [0]
    timer.join()
    assert not words[WordIndex.PARENT_SLEEPS]
    # a doorbell from an earlier wait
    Doorbell(words, 0, theirs).ring()
    assert hear_any([(other, 1)], 0.05) == []
    ours.close(), theirs.close(), os.close(never), os.close(sentinel)


def test_long_waits_are_not_looked_for(pair, monkeypatch):
    parent, *_ = pair
    monkeypatch.setattr(doorbell, "_STORES_IN_ORDER", True)
    spins = []
    monkeypatch.setattr(parent, "_spin", lambda seen, deadline: spins.append(seen))
    for _ in range(64):
        parent.hear(0, 0.002)
    assert 3 <= len(spins) < 40, "a few at first, then one now and then"
