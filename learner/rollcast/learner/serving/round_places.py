"""Decides which actor plays in which round: a state machine without threads or clocks."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

# A rollout is late if it takes this many times as long as the slowest one that arrived, and at least this many seconds.
_LATE: Final = 3.0
_LEAST_S: Final = 0.25

# Calls to make after a decision, without a lock: wake a stream, or end one so that its actor reconnects.
Actions: TypeAlias = Sequence[Callable[[], None]]


class Place:
    """The places of one rollout in a round. Only `RoundPlaces` changes them.

    Attributes:
        n_trajectories: The trajectories of the rollout.
        version: The round; 0 while the actor waits for places.
        is_held: True until the rollout arrives or the places are given away.
        is_late: True if other actors got the places because the rollout was late.
        since: The monotonic time from which the actor could play.
        wake: Tells the stream that it has places.
        recall: Ends the stream, so that its actor reconnects; None after the call.
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
    """The places of trajectories in rounds. In round v, actors play with policy version v.

    An update takes `batch_size` trajectories and publishes the next version, so a round has `batch_size` places. An
    actor takes places before it plays; if the round is full, the actor waits for the next round. A place is given back
    if its actor has gone or its trajectory fills no batch. Actors that wait get free places in order of arrival. If no
    actor waits, actors of a later round are recalled, because the newest round would otherwise never be complete.

    The round does not wait for an actor that is much slower than other actors. Once half of a round has arrived, a late
    rollout loses its places to a waiting actor. The late rollout still counts if it arrives before the round is full.
    After that it is too old.

    Invariant: held places and punctual rollouts of a round never exceed `batch_size` by a whole rollout or more. Places
    that `replace` has reopened do not count. Late rollouts may arrive in addition, whether or not they fill a batch.
    Rollouts beyond the batch are dropped as stale.

    Args:
        batch_size: B, in trajectories.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._version = 0
        self._taken: Counter[int] = Counter()
        # Held places in the newest round, in the order in which their actors could begin.
        self._playing: list[Place] = []
        # Of the newest round: the arrived trajectories, and the longest time of an arrived rollout.
        self._n_came = 0
        self._longest_s = 0.0
        # Waiting places, in order of arrival. Not empty only while the newest round is full.
        self._waiting: deque[Place] = deque()
        # Places that were booked in a later round, in order of arrival.
        self._ahead: deque[Place] = deque()

    @property
    def n_waiting(self) -> int:
        """The number of rollouts that wait for places."""
        return len(self._waiting)

    def begin(self, version: int, now: float) -> Actions:
        """Begins the round of a newly published version.

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
        """Takes places in the first round that has free places, from the current round on.

        Args:
            n_trajectories: The trajectories of a rollout.
            now: The time.
            recall: Ends the stream; called if the places are in a later round and an earlier one lacks a rollout.
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
        """Takes places in the newest round if it has free places; otherwise returns places to wait for.

        Args:
            n_trajectories: The trajectories of a rollout.
            now: The time.
            wake: Called once the actor has the places for which it waits.
        """
        place = Place(n_trajectories, now, wake=wake)
        if self._take(self._version, n_trajectories):
            place.version = self._version
            self._playing.append(place)
        else:
            self._waiting.append(place)
        return place

    def played(self, place: Place, policy_version: int, now: float) -> None:
        """Records that a rollout arrived while these places were held.

        Ignores a rollout of an older policy or of an earlier learner, because it was sent again, and used other places
        before.
        """
        if place.version <= policy_version <= self._version:
            place.is_held = False
            if place in self._playing:
                self._playing.remove(place)
                self._n_came += place.n_trajectories
                self._longest_s = max(self._longest_s, now - place.since)

    def give_back(self, place: Place, now: float) -> Actions:
        """Returns the places of a rollout that will not arrive. Does nothing if these places are not held any more."""
        if not place.is_held:
            return self._call_back()
        place.is_held = False
        return [*self._free(place, now), *self._call_back()]

    def replace(self, n_trajectories: int, now: float) -> Actions:
        """Reopens places in the newest round for trajectories that arrived but fill no batch."""
        self._taken[self._version] -= n_trajectories
        return [*self._hand_out(now), *self._call_back()]

    def give_up(self, place: Place) -> None:
        """Ends a wait. A stream that has places by then keeps them."""
        if place in self._waiting:
            self._waiting.remove(place)

    def is_first(self, place: Place) -> bool:
        """Returns whether a place is next in line."""
        return bool(self._waiting) and self._waiting[0] is place

    def pass_late_on(self, now: float) -> Actions:
        """Gives the places of late rollouts to waiting actors."""
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
        """Records that the rollout for places in the newest round can begin."""
        place.since = now
        self._playing.append(place)

    def _free(self, place: Place, now: float) -> Actions:
        """Frees places that are held or awaited."""
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
        """Gives places of the newest round to waiting actors."""
        actions: list[Callable[[], None]] = []
        while self._waiting and self._take(self._version, self._waiting[0].n_trajectories):
            place = self._waiting.popleft()
            place.version = self._version
            self._play(place, now)
            actions.append(place.wake)
        return actions

    def _call_back(self) -> Actions:
        """Recalls as many actors of later rounds as the newest round has free places."""
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
