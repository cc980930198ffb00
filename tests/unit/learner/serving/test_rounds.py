"""Places in rounds: who may play with which policy."""

import random
import sys
import threading
import time
from collections import deque

import pytest

from rollcast.learner.serving.rounds import Place, Rounds
from rollcast.services.process import waiting
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


def test_actors_of_a_later_round_are_called_back_when_nobody_else_can_play_the_newest():
    rounds, called = begun(4), []
    lost = rounds.book(4)
    later = [rounds.book(4, recall=lambda name=name: called.append(name)) for name in "ab"]
    assert [place.version for place in later] == [2, 3]
    rounds.give_back(lost)
    assert called == ["a"], "as many as the round has places for"
    assert rounds.book(4).version == 1
    rounds.give_back(later[0])
    assert called == ["a"]


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


def test_places_that_came_before_anybody_waited_for_them_are_forgotten_once_they_are_played():
    rounds = begun(1)
    booked = rounds.book(1)
    rounds.played(booked, 1)
    asked = rounds.ask(1)
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
        else:
            held.append(rounds.book(rng.randint(1, 6)))
        for of in {place.version for place in held}:
            assert sum(place.n_trajectories for place in held if place.version == of) < batch_size + 6
            assert of >= version


def test_round_that_begins_wakes_only_the_streams_that_get_its_places(monkeypatch: pytest.MonkeyPatch):
    """A stream asks whether it is open each time before it waits, so once if it is never woken for nothing."""
    monkeypatch.setattr(waiting, "LOOK_S", 60.0)
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


class Schedule:
    """Actors, the learner and what happens between them, in an order that a seed draws; one thread, no time.

    Actors lose connections that the learner takes for open, come back, go and come; what they play may have no
    transition, or be of a learner before this one.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.batch_size = self.rng.randint(1, 8)
        self.version = 3
        self.rounds = begun(self.batch_size, self.version)
        # what has come: trajectories, the policy that played them
        self.queue: deque[tuple[int, int]] = deque()
        self.n_filled = self.n_updates = 0
        self.actors: list[Actor] = []
        # places of streams that the learner takes for open, though their actor has gone
        self.frozen: list[Place] = []
        for _ in range(self.rng.randint(1, 4)):
            self.join()

    def join(self) -> None:
        self.actors.append(Actor(self, self.rng.randint(1, 4)))

    def leave(self) -> None:
        actor = self.actors.pop(self.rng.randrange(len(self.actors)))
        self.frozen.append(actor.place)
        self.join()

    def end_frozen(self) -> None:
        if self.frozen:
            self.rounds.give_back(self.frozen.pop(self.rng.randrange(len(self.frozen))))

    def take(self, *, may_be_idle: bool = True) -> None:
        """The trainer takes what has come first."""
        if not self.queue:
            return
        n, version = self.queue.popleft()
        if version != self.version:
            return
        taken = min(n, self.batch_size - self.n_filled)
        if n > taken:
            self.queue.appendleft((n - taken, version))
        n_idle = self.rng.randint(0, taken) if may_be_idle and self.rng.random() < 0.3 else 0
        self.n_filled += taken - n_idle
        if n_idle:
            self.rounds.replace(n_idle)
        if self.n_filled == self.batch_size:
            self.n_filled, self.version, self.n_updates = 0, self.version + 1, self.n_updates + 1
            self.rounds.begin(self.version)

    def anything(self) -> None:
        actor = self.rng.choice(self.actors)
        happens = [self.take, self.take, actor.play, actor.play, actor.come_back, actor.freeze]
        happens += [self.end_frozen, self.leave, lambda: actor.play(of_an_earlier_learner=True)]
        self.rng.choice(happens)()


class Actor:
    """An actor and its stream at the learner."""

    def __init__(self, schedule: Schedule, n: int) -> None:
        self.schedule, self.n, self.is_connected = schedule, n, True
        self.place: Place | None = None
        self.come_back()

    def come_back(self) -> None:
        """Opens a stream; that before, if any, is still open for the learner."""
        if self.place is not None:
            self.schedule.frozen.append(self.place)
        self.is_connected = True
        self.place = self.schedule.rounds.book(self.n, recall=self._recall)

    def freeze(self) -> None:
        self.is_connected = False

    def play(self, *, of_an_earlier_learner: bool = False) -> None:
        """Plays with the newest policy, if it has places for that."""
        place, newest = self.place, self.schedule.version
        if not self.is_connected or not 0 < place.version <= newest:
            return
        version = self.schedule.rng.choice([1, newest + 1, newest + 50]) if of_an_earlier_learner else newest
        self.schedule.queue.append((self.n, version))
        self.schedule.rounds.played(place, version)
        if not place.is_held:
            self.place = self.schedule.rounds.ask(self.n)

    def _recall(self) -> None:
        self.is_connected = False


@pytest.mark.parametrize("seeds", range(20))
def test_training_goes_on_whatever_happened_to_the_actors(seeds: int):
    for seed in range(100 * seeds, 100 * seeds + 100):
        schedule = Schedule(seed)
        for _ in range(schedule.rng.randint(0, 60)):
            schedule.anything()
        # from here on the machine room is quiet
        while schedule.frozen:
            schedule.end_frozen()
        begun_with = schedule.n_updates
        for _ in range(200):
            for actor in schedule.actors:
                if not actor.is_connected:
                    schedule.rounds.give_back(actor.place)
                    actor.come_back()
                actor.play()
            while schedule.queue:
                schedule.take(may_be_idle=False)
            while schedule.frozen:
                schedule.end_frozen()
        assert schedule.n_updates > begun_with + 10, f"it stopped: seed {seed}"


def test_places_of_a_late_rollout_go_to_one_that_waits():
    rounds = begun(4)
    slow, quick = rounds.book(2), rounds.book(2)
    rounds.played(quick, 1)
    waiting = Waiting(rounds, 2)
    waiting.join(10)
    assert (waiting.version, slow.is_held, slow.is_late) == (1, False, True)
    rounds.played(slow, 1)
    rounds.give_back(slow)
    again = rounds.ask(2)
    assert not again.version, "the places are taken, by the one that waited"
    rounds.begin(2)
    assert again.version == 2


def test_no_rollout_is_late_before_half_of_the_round_has_come():
    rounds = begun(6)
    slow, slower, quick = (rounds.book(2) for _ in range(3))
    rounds.played(quick, 1)
    waiting = Waiting(rounds, 2)
    wait_until(lambda: waiting.n_asked > 6, "the stream has looked for late rollouts")
    assert (waiting.version, slow.is_late, slower.is_late) == (None, False, False)
    rounds.played(slow, 1)
    rounds.begin(2)
    waiting.join(10)
    assert waiting.version == 2


def test_only_as_many_late_rollouts_lose_their_places_as_others_wait():
    rounds = begun(8)
    slow, slower, *quick = (rounds.book(2) for _ in range(4))
    for place in quick:
        rounds.played(place, 1)
    waiting = Waiting(rounds, 2)
    waiting.join(10)
    assert (waiting.version, slow.is_late, slower.is_late) == (1, True, False)


def test_a_rollout_has_as_long_as_any_that_has_come_and_more():
    """The slowest of those that came in time takes as long as the one that is awaited has taken."""
    rounds = begun(4)
    awaited, slow = rounds.book(2), rounds.book(2)
    wait_until(lambda: time.monotonic() - slow.since > 1.0, "a slow rollout")
    rounds.played(slow, 1)
    waiting = Waiting(rounds, 2)
    wait_until(lambda: waiting.n_asked > 3, "the stream has looked for late rollouts")
    assert (waiting.version, awaited.is_late) == (None, False)
    rounds.begin(2)
    waiting.join(10)
