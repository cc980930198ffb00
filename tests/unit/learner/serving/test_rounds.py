"""Places in rounds: who may play with which policy."""

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from rollcast.learner.serving import rounds as module
from rollcast.learner.serving.rounds import Place, Rounds
from rollcast.services.process import waiting
from tests.processes import DEADLINE_S, wait_until


def begun(batch_size: int, version: int = 1) -> Rounds:
    rounds = Rounds(batch_size)
    rounds.begin(version)
    return rounds


class Waiting(threading.Thread):
    """A stream that waits for places."""

    def __init__(self, rounds: Rounds, n_trajectories: int) -> None:
        super().__init__()
        self.version: int | None = None
        self.is_active, self.n_asked = True, 0
        self.place = rounds.ask(n_trajectories, played_version=0)
        self._rounds = rounds
        self.start()

    def run(self) -> None:
        self._rounds.wait(self.place, is_active=self._ask)
        self.version = self.place.version

    def _ask(self) -> bool:
        self.n_asked += 1
        return self.is_active


@pytest.mark.parametrize(
    ("happens", "version"),
    [
        pytest.param(lambda rounds, held, waiting: rounds.begin(2), 2, id="the next round begins"),
        pytest.param(lambda rounds, held, waiting: 2 * [rounds.give_back(held)], 1, id="an actor with a place goes"),
        pytest.param(lambda rounds, held, waiting: rounds.replace(1), 1, id="what fills no batch came"),
        pytest.param(lambda rounds, held, waiting: setattr(waiting, "is_active", False), 0, id="it is closed"),
    ],
)
def test_a_stream_waits_until(happens: Callable[[Rounds, Place, Waiting], object], version: int):
    rounds = begun(4)
    held = rounds.ask(4, played_version=0)
    assert held.version == 1
    waiting = Waiting(rounds, 4)
    wait_until(lambda: waiting.n_asked, "the stream waits")
    assert waiting.version is None
    happens(rounds, held, waiting)
    waiting.join(DEADLINE_S)
    assert waiting.version == version
    if version == 1:
        assert rounds.book(4).version == 2, "it has the place, or three more than were wanted have come"


def test_actors_of_the_next_round_are_called_back_when_nobody_else_can_play_the_newest():
    rounds, called = begun(4), []
    lost = rounds.ask(4, played_version=0)
    later = [rounds.book(4, recall=lambda name=name: called.append(name)) for name in "ab"]
    assert [place.version for place in later] == [2, 2]
    rounds.give_back(lost)
    assert called == ["a"], "as many as the round has places for"
    assert rounds.book(4).version == 1
    rounds.give_back(later[0])
    assert called == ["a"]


def test_actors_that_have_sent_nothing_take_no_place_from_those_that_have():
    rounds = begun(4)
    new = [rounds.book(4) for _ in range(3)]
    assert [place.version for place in new] == [1, 1, 1]
    assert rounds.ask(4, played_version=0).version == 1
    assert rounds.book(4).version == 2
    rounds.begin(2)
    assert rounds.ask(4, played_version=1).version == 2


def test_an_actor_that_has_played_in_a_round_leaves_it_to_one_that_is_new():
    rounds = begun(4)
    new = rounds.book(2)
    assert rounds.ask(2, played_version=0).version == 1
    again = rounds.ask(2, played_version=1)
    assert not again.version
    rounds.give_back(new)
    assert again.version == 1


def test_places_that_came_before_anybody_waited_for_them_are_forgotten_once_they_are_played():
    rounds = begun(1)
    booked = rounds.book(1)
    rounds.played(booked, 1)
    asked = rounds.ask(1, played_version=1)
    rounds.begin(2)
    rounds.played(asked, 2)
    assert not asked.is_held
    assert sys.getrefcount(asked) == sys.getrefcount(booked), "nothing else keeps them"


def test_rollouts_that_are_sent_again_use_no_places():
    rounds = begun(4)
    place = rounds.book(4)
    rounds.played(place, 0)
    rounds.played(place, 9)
    assert place.is_held, "one was of an older policy, the other of an earlier learner's"
    rounds.played(place, 1)
    assert not place.is_held
    rounds.give_back(place)
    assert rounds.book(4).version == 2, "they were used"


def test_round_that_begins_wakes_only_the_streams_that_get_its_places(monkeypatch: pytest.MonkeyPatch):
    """A stream asks whether it is open each time before it waits, so once if it is never woken for nothing."""
    monkeypatch.setattr(waiting, "LOOK_S", DEADLINE_S)
    rounds = begun(2)
    assert [rounds.ask(1, played_version=0).version for _ in range(2)] == [1, 1]
    streams = []
    for _ in range(30):
        streams.append(Waiting(rounds, 1))
        wait_until(lambda: streams[-1].n_asked, "the stream waits")
    for version in range(2, 17):
        rounds.begin(version)
        for stream in streams[2 * version - 4 : 2 * version - 2]:
            stream.join(DEADLINE_S)
            assert stream.version == version
        assert all(stream.version is None for stream in streams[2 * version - 2 :]), "in the order in which they came"
    assert [stream.n_asked for stream in streams] == [1] * len(streams)


class Clock:
    """A monotonic time that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_places_of_a_late_rollout_go_to_one_that_waits(clock: Clock):
    rounds = begun(4)
    slow, quick = rounds.book(2), rounds.book(2)
    clock.now = 0.1
    rounds.played(quick, 1)
    waiting = rounds.ask(2, played_version=1)
    rounds.pass_late_on()
    assert not waiting.version
    clock.now = 0.31
    rounds.pass_late_on()
    assert (waiting.version, slow.is_held, slow.is_late) == (1, False, True)
    rounds.played(slow, 1)
    rounds.give_back(slow)
    again = rounds.ask(2, played_version=1)
    assert not again.version, "the places are taken, by the one that waited"
    rounds.begin(2)
    assert again.version == 2


def test_the_first_round_is_patient_before_half_of_it_has_come(clock: Clock):
    rounds = begun(6)
    slow, slower, quick = (rounds.book(2) for _ in range(3))
    clock.now = 0.1
    rounds.played(quick, 1)
    waiting = rounds.ask(2, played_version=1)
    clock.now = 0.99
    rounds.pass_late_on()
    assert (waiting.version, slow.is_late, slower.is_late) == (0, False, False)
    clock.now = 1.3
    rounds.pass_late_on()
    assert (waiting.version, slow.is_late, slower.is_late) == (1, True, False)


def test_later_rounds_take_the_last_one_as_their_measure(clock: Clock):
    rounds = begun(2)
    places = [rounds.book(1) for _ in range(2)]
    clock.now = 2.0
    for place in places:
        rounds.played(place, 1)
    silent, waiting = (rounds.ask(2, played_version=1) for _ in range(2))
    rounds.begin(2)
    assert (silent.version, waiting.version) == (2, 0)
    clock.now = 8.0
    rounds.pass_late_on()
    assert not silent.is_late
    clock.now = 8.1
    rounds.pass_late_on()
    assert (silent.is_late, waiting.version) == (True, 2)


def test_a_late_rollout_makes_room_for_an_actor_of_the_next_round(clock: Clock):
    rounds, called = begun(1), []
    rounds.played(rounds.book(1), 1)
    rounds.begin(2)
    silent, other = rounds.ask(1, played_version=1), rounds.book(1, recall=lambda: called.append("other"))
    assert (silent.version, other.version) == (2, 3)
    clock.now = 9.0
    rounds.pass_late_on()
    assert (silent.is_late, called) == (True, ["other"])


def test_only_as_many_late_rollouts_lose_their_places_as_others_wait(clock: Clock):
    rounds = begun(8)
    slow, slower, *quick = (rounds.book(2) for _ in range(4))
    for place in quick:
        rounds.played(place, 1)
    waiting = rounds.ask(2, played_version=1)
    clock.now = 9.0
    rounds.pass_late_on()
    assert (waiting.version, slow.is_late, slower.is_late) == (1, True, False)


def test_a_rollout_has_as_long_as_any_that_has_come_and_more(clock: Clock):
    """The slowest of those that came in time takes as long as the one that is awaited has taken."""
    rounds = begun(4)
    awaited, slow = rounds.book(2), rounds.book(2)
    clock.now = 1.0
    rounds.played(slow, 1)
    waiting = rounds.ask(2, played_version=1)
    rounds.pass_late_on()
    assert (waiting.version, awaited.is_late) == (0, False)
