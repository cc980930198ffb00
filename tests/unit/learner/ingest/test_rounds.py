"""Places in rounds: who may play with which policy."""

import random
import threading

import pytest

from rollcast.learner.ingest import rounds as rounds_module
from rollcast.learner.ingest.rounds import Rounds
from tests.processes import wait_until


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
        self.place = rounds.ask(n_trajectories)
        self._rounds = rounds
        self.start()

    def run(self) -> None:
        self._rounds.wait(self.place, is_active=self._ask)
        self.version = self.place.version

    def _ask(self) -> bool:
        self.n_asked += 1
        return self.is_active


def test_places_beyond_the_batch_are_of_later_rounds():
    rounds = begun(8)
    assert [rounds.book(4).version for _ in range(5)] == [1, 1, 2, 2, 3]


def test_rollout_that_begins_within_the_round_may_end_beyond_it():
    assert [place.version for place in (begun(6).book(4), *map(begun(6).book, (6, 4)))] == [1, 1, 2]
    rounds = begun(6)
    assert [rounds.book(4).version for _ in range(3)] == [1, 1, 2]


def test_stream_waits_for_the_next_round():
    rounds = begun(4)
    assert rounds.book(4).version == 1
    waiting = Waiting(rounds, 4)
    wait_until(lambda: waiting.n_asked, "the stream waits")
    assert waiting.version is None
    rounds.begin(2)
    waiting.join(10)
    assert waiting.version == 2


def test_place_of_an_actor_that_has_gone_goes_to_one_that_waits():
    rounds = begun(4)
    gone = rounds.book(4)
    waiting = Waiting(rounds, 4)
    wait_until(lambda: waiting.n_asked, "the stream waits")
    rounds.give_back(gone)
    rounds.give_back(gone)
    waiting.join(10)
    assert waiting.version == 1


def test_places_of_what_fills_no_batch_go_to_one_that_waits():
    rounds = begun(4)
    rounds.book(4)
    waiting = Waiting(rounds, 4)
    wait_until(lambda: waiting.n_asked, "the stream waits")
    rounds.replace(1)
    waiting.join(10)
    assert waiting.version == 1
    assert rounds.book(4).version == 2, "three more than were wanted have come by then"


def test_wait_ends_with_the_stream():
    rounds = begun(4)
    rounds.book(4)
    waiting = Waiting(rounds, 4)
    wait_until(lambda: waiting.n_asked, "the stream waits")
    waiting.is_active = False
    waiting.join(10)
    assert waiting.version == 0


def test_places_of_past_rounds_are_forgotten():
    rounds = begun(4)
    past = rounds.book(4)
    rounds.begin(2)
    rounds.give_back(past)
    assert [rounds.book(4).version, rounds.book(4).version] == [2, 3]


def test_the_next_stream_of_an_actor_has_the_places_of_the_one_before():
    rounds = begun(4)
    before = rounds.book(4)
    after = rounds.book(4, instead_of=before)
    assert after.version == 1, "not the next round, which nobody would play"
    rounds.give_back(before)
    assert rounds.book(4).version == 2, "it is the stream's no more"
    rounds.give_back(after)
    assert rounds.book(4).version == 1


def test_the_next_stream_of_an_actor_does_not_take_over_what_is_over():
    rounds = begun(4)
    played, past = rounds.book(2), rounds.book(2)
    rounds.played(past, 0)
    rounds.played(past, 9)
    assert past.is_held, "these were sent again, one of them by an actor of an earlier learner"
    rounds.played(played, 1)
    assert rounds.book(2, instead_of=played).version == 2
    rounds.begin(2)
    assert rounds.book(2, instead_of=past).version == 2, "its round is over"
    waiting = rounds.ask(4)
    assert rounds.n_waiting == 1
    assert rounds.book(4, instead_of=waiting).version == 3
    assert rounds.n_waiting == 0, "nobody waits for it any more"


@pytest.mark.parametrize("seed", range(20))
def test_round_never_has_more_than_its_places_and_a_rollout(seed: int):
    """Actors come, go and play at random; each round's batch is full when all who hold places have played."""
    rng = random.Random(seed)
    batch_size, version = rng.randint(1, 12), 1
    rounds, held = begun(batch_size), []
    for _ in range(300):
        if held and rng.random() < 0.3:
            rounds.give_back(held.pop(rng.randrange(len(held))))
        elif held and rng.random() < 0.2 and sum(p.n_trajectories for p in held if p.version == version) >= batch_size:
            held = [place for place in held if place.version > version]
            version += 1
            rounds.begin(version)
        elif held and rng.random() < 0.2:
            index = rng.randrange(len(held))
            held[index] = rounds.book(held[index].n_trajectories, instead_of=held[index])
        else:
            held.append(rounds.book(rng.randint(1, 6)))
        for of in {place.version for place in held}:
            assert sum(place.n_trajectories for place in held if place.version == of) < batch_size + 6
            assert of >= version


def test_round_that_begins_wakes_only_the_streams_that_get_its_places(monkeypatch: pytest.MonkeyPatch):
    """A stream asks whether it is open each time before it waits, so once if it is never woken for nothing."""
    monkeypatch.setattr(rounds_module, "_CHECK_S", 60.0)
    rounds = begun(2)
    assert [rounds.book(1).version, rounds.book(1).version] == [1, 1]
    streams = []
    for _ in range(30):
        streams.append(Waiting(rounds, 1))
        wait_until(lambda: rounds.n_waiting == len(streams), "the stream waits")
    for version in range(2, 17):
        rounds.begin(version)
        for stream in streams[2 * version - 4 : 2 * version - 2]:
            stream.join(10)
            assert stream.version == version
        assert all(stream.version is None for stream in streams[2 * version - 2 :]), "in the order in which they came"
    assert [stream.n_asked for stream in streams] == [1] * len(streams)
