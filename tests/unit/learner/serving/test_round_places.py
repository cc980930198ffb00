"""Every short schedule of actors, a trainer and a clock, by the places of their rounds."""

import pytest

from rollcast.learner.serving.round_places import Actions, Place, RoundPlaces
from tests.simulation.walk import walk

_FIRST = 3


class Actor:
    """An actor with its place; `is_here` is False while its connection is lost and its stream not closed yet."""

    def __init__(self, n: int) -> None:
        self.n, self.is_here = n, True
        self.place: Place | None = None

    def recall(self) -> None:
        self.is_here = False


class Training:
    """Actors that play, go and come back, and a trainer; one thread, and a clock that only events move.

    What must be true is counted here, from what the actors have played and what their places say.
    """

    def __init__(self, batch_size: int, *sizes: int) -> None:
        self.batch_size, self.largest, self.now, self.version = batch_size, max(sizes), 0.0, _FIRST
        self.places = RoundPlaces(batch_size)
        self.places.begin(_FIRST, 0.0)
        # of the newest round: trajectories that came in time, that came late, and that filled no batch
        self.n_in_time = self.n_late = self.n_replaced = 0
        self.n_updates = 0
        self.asked: list[Place] = []
        self.woken: list[Place] = []
        self.actors = [Actor(n) for n in sizes]
        for actor in self.actors:
            self.come(actor)

    # -- what can happen --

    def events(self) -> list[tuple[str, int]]:
        happens = [("a second goes by", 0), ("a late rollout is looked for", 0)]
        for i, actor in enumerate(self.actors):
            happens.append(("the stream breaks", i))
            happens += [("go for good", i)] if len(self.actors) > 1 else []
            if self.may_play(actor):
                happens += [("play", i), ("play what fills no batch", i)]
            elif actor.place is not None and actor.place.version == 0 and actor.is_here:
                happens.append(("give up the wait", i))
        return happens

    def happen(self, event: tuple[str, int]) -> None:
        what, i = event
        actor = self.actors[i]
        if what == "a second goes by":
            self.now += 1.0
        elif what == "a late rollout is looked for":
            self.do(self.places.pass_late_on(self.now))
        elif what == "the stream breaks":
            self.leave(actor)
            self.come(actor)
        elif what == "go for good":
            self.actors.remove(actor)
            self.leave(actor)
        elif what == "give up the wait":
            self.places.give_up(actor.place)
            self.leave(actor)
            self.come(actor)
        else:
            self.play(actor, is_idle=what == "play what fills no batch")
        self.come_back()
        self.check()

    def may_play(self, actor: Actor) -> bool:
        """Returns whether an actor has places of the newest round, or had them before it was late."""
        return actor.is_here and actor.place is not None and 0 < actor.place.version <= self.version

    def come(self, actor: Actor) -> None:
        actor.is_here = True
        actor.place = self.places.book(actor.n, self.now, recall=actor.recall)

    def leave(self, actor: Actor) -> None:
        self.do(self.places.give_back(actor.place, self.now))
        assert not actor.place.is_held
        assert not self.places.is_first(actor.place), "it waits, and nobody is there"

    def come_back(self) -> None:
        """Actors that were called back open another stream."""
        while gone := [actor for actor in self.actors if not actor.is_here]:
            self.leave(gone[0])
            self.come(gone[0])

    def play(self, actor: Actor, *, is_idle: bool) -> None:
        place = actor.place
        was_late, is_newest = place.is_late, place.version == self.version
        # A rollout of a round that is over comes too late for any, and one of an earlier learner asks for no places.
        self.places.played(place, self.version, self.now)
        assert not place.is_held
        if is_newest and was_late:
            self.n_late += actor.n
        elif is_newest:
            self.n_in_time += actor.n
        if is_idle and self.n_in_time + self.n_late - self.n_replaced <= self.batch_size:
            self.n_replaced += actor.n
            self.do(self.places.replace(actor.n, self.now))
        if self.n_in_time + self.n_late - self.n_replaced >= self.batch_size:
            self.version += 1
            self.n_updates += 1
            self.n_in_time = self.n_late = self.n_replaced = 0
            self.do(self.places.begin(self.version, self.now))
        actor.place = asked = self.places.ask(actor.n, self.now, wake=lambda: self.woken.append(asked))
        if not asked.version:
            self.asked.append(asked)

    def do(self, actions: Actions) -> None:
        for action in actions:
            action()

    # -- what must be true --

    def check(self) -> None:
        held = [actor.place for actor in self.actors if actor.place.is_held and actor.place.version]
        waiting = [actor.place for actor in self.actors if actor.place.is_held and not actor.place.version]
        assert not any(place in self.woken for place in waiting), "one is woken for nothing"
        assert all(place in self.woken for place in held if place in self.asked), "one that got places is not woken"
        assert self.places.n_waiting == len(waiting)
        n_newest = sum(place.n_trajectories for place in held if place.version == self.version)
        n_taken = n_newest + self.n_in_time
        assert n_taken - self.n_replaced < self.batch_size + self.largest, f"{n_taken} places are taken"
        assert not waiting or n_taken - self.n_replaced >= self.batch_size, "one waits, and there are places"
        for version in {place.version for place in held} - {self.version}:
            n = sum(place.n_trajectories for place in held if place.version == version)
            assert n < self.batch_size + self.largest, f"{n} places are taken of round {version}"

    def settle(self) -> None:
        """From here on all play as they may, and the batches fill."""
        wanted = self.n_updates + 3
        for _ in range(30):
            if self.n_updates >= wanted:
                return
            for actor in self.actors:
                if self.may_play(actor):
                    self.play(actor, is_idle=False)
                    self.come_back()
                    self.check()
            self.now += 1.0
            self.do(self.places.pass_late_on(self.now))
        raise AssertionError("training has stopped")


@pytest.mark.parametrize(
    ("batch_size", "sizes", "longest"),
    [(1, (1, 1), 4), (2, (1, 1), 4), (2, (2, 1), 4), (3, (2, 2), 4), (2, (1, 1, 2), 3)],
)
def test_whatever_happens_no_round_has_too_many_places_and_training_goes_on(
    batch_size: int, sizes: tuple[int, ...], longest: int
):
    assert walk(lambda: Training(batch_size, *sizes), longest) > 500
