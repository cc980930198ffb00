"""Decides which actor plays in which round: a state machine without threads and clocks."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

# A rollout of the round is late if it takes so many times as long as any that has come, and at least so many seconds.
_LATE: Final = 3.0
_LEAST_S: Final = 0.25

# Things to do after a decision, without a lock: wake a stream, or end one whose actor then comes back.
Actions: TypeAlias = Sequence[Callable[[], None]]


class Place:
    """The places of one rollout in a round; `RoundPlaces` alone changes it.

    Attributes:
        n_trajectories: The trajectories of the rollout.
        version: The round; 0 while they are waited for.
        is_held: True until the rollout has come, or they are given back or to others.
        is_late: True if they were given to others, because the rollout did not come.
        since: The monotonic time at which it could begin.
        wake: Tells the stream that the places are there.
        recall: Ends the stream, whose actor comes back; None: it was called.
    """

    __slots__ = ("is_held", "is_late", "n_trajectories", "recall", "since", "version", "wake")

    def __init__(
        self,
        n_trajectories: int,
        since: float,
        *,
        version: int = 0,
        wake: Callable[[], None] = lambda: None,
        recall: Callable[[], None] | None = None,
    ) -> None:
        self.n_trajectories = n_trajectories
        self.version = version
        self.is_held = True
        self.is_late = False
        self.since = since
        self.wake = wake
        self.recall = recall


class RoundPlaces:
    """The places of trajectories in rounds: actors play those of round v with policy version v.

    An update takes `batch_size` trajectories and publishes the next version, so a round has as many places. An actor
    takes places before it plays; if the round is full, it waits for the next one. A place that is given back, because
    its actor has gone or what it played fills no batch, goes to an actor that waits. Those that wait get places in the
    order in which they came. If no actor waits, actors that play a later round are called back, or the newest round
    would stay unplayed.

    The round does not wait for an actor that is much slower than the others. Once half of a round has come, a rollout
    that is late loses its places to one that waits. If it comes before the round is full, it counts; else it is too old
    for any.

    Invariant: the places of a round that are held, or whose rollouts have come in time, never exceed `batch_size` by as
    much as one rollout. Places that `replace` has opened again do not count. Late rollouts may come in addition,
    whether they fill a batch or not; rollouts beyond the batch are dropped as stale.

    Args:
        batch_size: B, in trajectories.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._version = 0
        self._taken: Counter[int] = Counter()
        # Those that are held in the newest round, in the order in which they could begin.
        self._playing: list[Place] = []
        # Of the newest round: the trajectories that have come, and the longest time that a rollout of them took.
        self._n_came = 0
        self._longest_s = 0.0
        # Those that wait, in the order in which they came. Not empty only while the newest round is full.
        self._waiting: deque[Place] = deque()
        # Those that were booked in a later round than the newest, in the order in which they came.
        self._ahead: deque[Place] = deque()

    @property
    def n_waiting(self) -> int:
        """The rollouts that wait for places."""
        return len(self._waiting)

    def begin(self, version: int, now: float) -> Actions:
        """Begins the round of the version that is published.

        Args:
            version: The version.
            now: The monotonic time in seconds, here and below.
        """
        self._version = version
        for past in [taken for taken in self._taken if taken < version]:
            del self._taken[past]
        self._n_came, self._longest_s = 0, 0.0
        self._playing = []
        for place in self._ahead:
            if place.version == version:
                self._play(place, now)
        self._ahead = deque(place for place in self._ahead if place.version > version)
        return [*self._hand_out(now), *self._call_back()]

    def book(self, n_trajectories: int, now: float, *, recall: Callable[[], None] | None = None) -> Place:
        """Takes places in the first round that has some, from this one on.

        Args:
            n_trajectories: The trajectories of a rollout.
            now: The time.
            recall: Ends the stream; an action if these are places of a later round, and an earlier one lacks a rollout.
        """
        version = self._version
        while not self._take(version, n_trajectories):
            version += 1
        place = Place(n_trajectories, now, version=version, recall=recall)
        if version > self._version:
            self._ahead.append(place)
        else:
            self._playing.append(place)
        return place

    def ask(self, n_trajectories: int, now: float, *, wake: Callable[[], None] = lambda: None) -> Place:
        """Takes places in the newest round if it has some; else returns those that are waited for.

        Args:
            n_trajectories: The trajectories of a rollout.
            now: The time.
            wake: An action once places are there that were waited for.
        """
        place = Place(n_trajectories, now, wake=wake)
        if self._take(self._version, n_trajectories):
            place.version = self._version
            self._playing.append(place)
        else:
            self._waiting.append(place)
        return place

    def played(self, place: Place, policy_version: int, now: float) -> None:
        """Notes that a rollout has come while these places were held.

        One of an older policy, or of one that an earlier learner published, was sent again: it had its places before.
        """
        if place.version <= policy_version <= self._version:
            place.is_held = False
            if place in self._playing:
                self._playing.remove(place)
                self._n_came += place.n_trajectories
                self._longest_s = max(self._longest_s, now - place.since)

    def give_back(self, place: Place, now: float) -> Actions:
        """Gives places back whose rollout will not come; does nothing if they are not held any more."""
        if not place.is_held:
            return self._call_back()
        place.is_held = False
        return [*self._free(place, now), *self._call_back()]

    def replace(self, n_trajectories: int, now: float) -> Actions:
        """Opens places in the newest round for others of its trajectories, which have come and fill no batch."""
        self._taken[self._version] -= n_trajectories
        return [*self._hand_out(now), *self._call_back()]

    def give_up(self, place: Place) -> None:
        """Ends a wait; a stream that has got places by then keeps them."""
        if place in self._waiting:
            self._waiting.remove(place)

    def is_first(self, place: Place) -> bool:
        """Returns whether a place is the next to be assigned."""
        return bool(self._waiting) and self._waiting[0] is place

    def pass_late_on(self, now: float) -> Actions:
        """Gives the places of rollouts that are late to those that wait."""
        actions: list[Callable[[], None]] = []
        allowed_s = max(_LEAST_S, _LATE * self._longest_s)
        while self._waiting and self._playing and 2 * self._n_came >= self._batch_size:
            late = self._playing[0]
            if now - late.since <= allowed_s:
                break
            late.is_held, late.is_late = False, True
            actions += self._free(late, now)
        return actions

    def _play(self, place: Place, now: float) -> None:
        """Notes that the rollout of places in the newest round can begin."""
        place.since = now
        self._playing.append(place)

    def _free(self, place: Place, now: float) -> Actions:
        """Lets others have places that are held, or waited for, no more."""
        if place in self._waiting:
            self._waiting.remove(place)
        elif place.version in self._taken:
            for places in (self._ahead, self._playing):
                if place in places:
                    places.remove(place)
            self._taken[place.version] -= place.n_trajectories
            return self._hand_out(now)
        return ()

    def _hand_out(self, now: float) -> Actions:
        """Gives places of the newest round to those that wait."""
        actions: list[Callable[[], None]] = []
        while self._waiting and self._take(self._version, self._waiting[0].n_trajectories):
            place = self._waiting.popleft()
            place.version = self._version
            self._play(place, now)
            actions.append(place.wake)
        return actions

    def _call_back(self) -> Actions:
        """Calls back as many actors of later rounds as the newest has places for."""
        actions: list[Callable[[], None]] = []
        n_free = self._batch_size - self._taken[self._version]
        for place in self._ahead:
            if n_free <= 0:
                break
            n_free -= place.n_trajectories
            if place.recall is not None:
                actions.append(place.recall)
                place.recall = None
        return actions

    def _take(self, version: int, n_trajectories: int) -> bool:
        if self._taken[version] >= self._batch_size:
            return False
        self._taken[version] += n_trajectories
        return True
