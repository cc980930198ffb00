"""Every short schedule of actors, a trainer and a clock, by the places of their rounds."""

import pytest

from rollcast.learner.serving.round_places import Actions, Place, RoundPlaces
from tests.simulation.walk import walk

_FIRST = 3


class Actor:
    """An actor with its place; `is_here` is False while its connection is lost and its stream not closed yet."""

    def __init__(self, n: int) -> None:
        self.n, self.is_here, self.is_hollow = n, True, False
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
        # of the newest round: trajectories that came, those of them that had places, and those that filled no batch
        self.n_came = self.n_placed = self.n_replaced = 0
        self.n_updates = 0
        self.asked: list[Place] = []
        self.woken: list[Place] = []
        self.actors = [Actor(n) for n in sizes]
        for actor in self.actors:
            self.come(actor)

    # -- what can happen --

    def events(self) -> list[tuple[str, int]]:
        happens = [("a second goes by", 0), ("late rollouts are looked for", 0)]
        n_honest = sum(not actor.is_hollow for actor in self.actors)
        for i, actor in enumerate(self.actors):
            happens.append(("the stream breaks", i))
            happens += [("go for good", i)] if n_honest > 1 or actor.is_hollow else []
            if actor.is_hollow:
                continue
            happens += [("send nothing from now on", i)] if n_honest > 1 else []
            if self.may_play(actor):
                happens += [("play", i), ("play what fills no batch", i)]
                happens += [("play and ask after the update", i)] if self.completes(actor) else []
                happens += [("play the old version", i)] if actor.place.version < self.version else []
            elif actor.place is not None and actor.place.version == 0 and actor.is_here:
                happens.append(("give up the wait", i))
        return happens

    def happen(self, event: tuple[str, int]) -> None:
        what, i = event
        actor = self.actors[i]
        if what == "a second goes by":
            self.now += 1.0
        elif what == "late rollouts are looked for":
            self.do(self.places.pass_late_on(self.now))
        elif what == "send nothing from now on":
            actor.is_hollow = True
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
            self.play(
                actor,
                actor.place.version if what == "play the old version" else self.version,
                is_idle=what == "play what fills no batch",
                asks_late=what == "play and ask after the update",
            )
        self.come_back()
        self.check()

    def may_play(self, actor: Actor) -> bool:
        """Returns whether an actor has places of the newest round, or had them before it was late."""
        return actor.is_here and actor.place is not None and 0 < actor.place.version <= self.version

    def completes(self, actor: Actor) -> bool:
        """Returns whether an actor's rollout completes the batch."""
        return self.n_came + actor.n - self.n_replaced >= self.batch_size

    def come(self, actor: Actor) -> None:
        actor.is_here = True
        actor.place = self.places.book(actor.n, self.now, recall=actor.recall)

    def leave(self, actor: Actor) -> None:
        self.do(self.places.give_back(actor.place, self.now))
        assert not actor.place.is_held

    def come_back(self) -> None:
        """Actors that were called back open another stream."""
        while gone := [actor for actor in self.actors if not actor.is_here]:
            self.leave(gone[0])
            self.come(gone[0])

    def play(self, actor: Actor, version: int, *, is_idle: bool = False, asks_late: bool = False) -> None:
        place = actor.place
        has_place = place.is_held and place.played_version is not None and place.version == self.version
        self.places.played(place, version, self.now)
        assert not place.is_held
        if version == self.version:
            self.n_came += actor.n
            self.n_placed += actor.n * has_place
            if is_idle:
                self.n_replaced += actor.n
                self.do(self.places.replace(actor.n, self.now))
        if asks_late:
            self.update()
            self.ask(actor, version)
        else:
            self.ask(actor, version)
            self.update()

    def ask(self, actor: Actor, played_version: int) -> None:
        asked = self.places.ask(actor.n, self.now, played_version=played_version, wake=lambda: self.woken.append(asked))
        actor.place = asked
        if not asked.version:
            self.asked.append(asked)

    def update(self) -> None:
        if self.n_came - self.n_replaced >= self.batch_size:
            self.version += 1
            self.n_updates += 1
            self.n_came = self.n_placed = self.n_replaced = 0
            self.do(self.places.begin(self.version, self.now))

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
        newest = [place for place in held if place.version == self.version]
        n_first = sum(place.n_trajectories for place in newest if place.played_version is None)
        n_later = sum(place.n_trajectories for place in newest if place.played_version is not None)
        n_placed = n_later + self.n_placed - self.n_replaced
        assert n_placed < self.batch_size + self.largest, f"{n_placed} places are taken"
        n_taken = n_later + self.n_came - self.n_replaced
        for place in waiting:
            n_before = n_taken + n_first * (place.played_version == self.version)
            assert n_before >= self.batch_size, "one waits, and there are places"
        later = [place for place in held if place.version > self.version]
        assert all(place.version == self.version + 1 and place.played_version is None for place in later)
        if n_taken + n_first < self.batch_size:
            assert all(actor.place not in later for actor in self.actors), "one waits for the next round in this one"

    def settle(self) -> None:
        """From here on all but the hollow ones play as they may, and the batches fill."""
        wanted = self.n_updates + 3
        for _ in range(80):
            if self.n_updates >= wanted:
                return
            for actor in self.actors:
                if self.may_play(actor) and not actor.is_hollow:
                    self.play(actor, self.version)
                    self.come_back()
                    self.check()
            self.now += 1.0
            self.do(self.places.pass_late_on(self.now))
            self.come_back()
        raise AssertionError("training has stopped")


@pytest.mark.parametrize(
    ("batch_size", "sizes", "longest"),
    [(1, (1, 1), 4), (2, (1, 1), 4), (2, (2, 1), 4), (3, (2, 2), 4), (2, (1, 1, 2), 3)],
)
def test_whatever_happens_no_round_has_too_many_places_and_training_goes_on(
    batch_size: int, sizes: tuple[int, ...], longest: int
):
    assert walk(lambda: Training(batch_size, *sizes), longest) > 500
