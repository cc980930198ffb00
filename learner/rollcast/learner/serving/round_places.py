"""Decides which actor plays in which round: a state machine without threads or clocks."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

# A rollout is late if it takes this many times as long as the slowest one of this round and the last, and at least this
# many seconds.
_LATE: Final = 3.0
_LEAST_S: Final = 0.25
# The first round waits this many times as long until half of it has arrived.
_PATIENCE: Final = 4.0

# Calls to make after a decision, without a lock: wake a stream, or end one so that its actor reconnects.
Actions: TypeAlias = Sequence[Callable[[], None]]


class Place:
    """The places of one rollout in a round. Only `RoundPlaces` changes them.

    Attributes:
        n_trajectories: The trajectories of the rollout.
        version: The round; 0 while the actor waits for places.
        played_version: The round that the actor's stream has played before; None: its first rollout.
        is_held: True until the rollout arrives or the places are given away.
        is_late: True if other actors got the places because the rollout was late.
        since: The monotonic time from which the actor could play.
        wake: Tells the stream that it has places.
        recall: Ends the stream, so that its actor reconnects; None after the call.
    """

    __slots__ = ("is_held", "is_late", "n_trajectories", "played_version", "recall", "since", "version", "wake")

    def __init__(
        self,
        n_trajectories: int,
        since: float,
        *,
        version: int = 0,
        played_version: int | None = None,
        wake: Callable[[], None] = lambda: None,
        recall: Callable[[], None] | None = None,
    ) -> None:
        self.n_trajectories = n_trajectories
        self.version = version
        self.played_version = played_version
        self.is_held = True
        self.is_late = False
        self.since = since
        self.wake = wake
        self.recall = recall


class RoundPlaces:
    """The places of trajectories in rounds. In round v, actors play with policy version v.

    An update takes `batch_size` trajectories and publishes the next version, so a round has `batch_size` places. An
    actor takes places before it plays; if the round is full, the actor waits for the next round. A place is given back
    if its actor has gone or its trajectory fills no batch. Actors that wait get free places in order of arrival.

    The first rollout of a stream takes no place from others, because an actor that never sends it would stop them all.
    It is played in the newest round, or in the next one if this one is full, and counts if it arrives before the round
    is full. An actor that has played in the newest round already waits for such a rollout; other actors do not. If a
    round gets free places for which no actor waits, actors of the next round are recalled, because the newest round
    would otherwise never be complete.

    A round does not wait for an actor that is much slower than the actors of this round and the last. A late rollout
    loses its places to a waiting actor. It still counts if it arrives before the round is full. After that it is too
    old.

    Invariant: held places of later rollouts and the arrived rollouts of a round never exceed `batch_size` by a whole
    rollout or more. First and late rollouts may arrive in addition, whether or not they fill a batch. Rollouts beyond
    the batch are dropped as stale.

    Args:
        batch_size: B, in trajectories.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._version = 0
        # Held places in the newest round, in the order in which their actors could begin.
        self._playing: list[Place] = []
        # Of the newest round, in trajectories: those that arrived, and the held places of first and of later rollouts.
        self._n_came = self._n_first = self._n_later = 0
        # The longest time of a punctual rollout, in the newest round and in the last one that had any.
        self._longest_s = self._longest_before_s = 0.0
        # Waiting places, in order of arrival. Not empty only while the newest round is full.
        self._waiting: deque[Place] = deque()
        # The places of first rollouts in the next round, in order of arrival.
        self._ahead: list[Place] = []

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
        self._longest_before_s, self._longest_s = self._longest_s or self._longest_before_s, 0.0
        self._n_came = self._n_first = self._n_later = 0
        ahead, self._playing, self._ahead = self._ahead, [], []
        for place in ahead:
            self._play(place, now)
        return self._hand_out(now)

    def book(self, n_trajectories: int, now: float, *, recall: Callable[[], None] | None = None) -> Place:
        """Takes places for the first rollout of a stream: in the newest round, or in the next one if this one is full.

        Args:
            n_trajectories: The trajectories of a rollout.
            now: The time.
            recall: Ends the stream; called if the places are in the next round and the newest one lacks a rollout.
        """
        place = Place(n_trajectories, now, recall=recall)
        if self._n_came + self._n_later < self._batch_size:
            self._play(place, now)
        else:
            place.version = self._version + 1
            self._ahead.append(place)
        return place

    def ask(
        self, n_trajectories: int, now: float, *, played_version: int, wake: Callable[[], None] = lambda: None
    ) -> Place:
        """Takes places in the newest round if it has free places; otherwise returns places to wait for.

        Args:
            n_trajectories: The trajectories of a rollout.
            now: The time.
            played_version: The round of the stream's last rollout.
            wake: Called once the actor has the places for which it waits.
        """
        place = Place(n_trajectories, now, played_version=played_version, wake=wake)
        if self._has_room_for(place):
            self._play(place, now)
        else:
            self._waiting.append(place)
        return place

    def played(self, place: Place, policy_version: int, now: float) -> None:
        """Records that a rollout arrived while these places were held.

        Ignores a rollout of an older policy or of an earlier learner, because it was sent again, and used other places
        before.
        """
        if not place.version <= policy_version <= self._version:
            return
        place.is_held = False
        if self._leave(place):
            self._longest_s = max(self._longest_s, now - place.since)
        if policy_version == self._version:
            self._n_came += place.n_trajectories

    def give_back(self, place: Place, now: float) -> Actions:
        """Returns the places of a rollout that will not arrive. Does nothing if these places are not held any more."""
        if not place.is_held:
            return self._call_back()
        place.is_held = False
        for places in (self._waiting, self._ahead):
            if place in places:
                places.remove(place)
        self._leave(place)
        return [*self._hand_out(now), *self._call_back()]

    def replace(self, n_trajectories: int, now: float) -> Actions:
        """Reopens places in the newest round for trajectories that arrived but fill no batch."""
        self._n_came -= n_trajectories
        return [*self._hand_out(now), *self._call_back()]

    def give_up(self, place: Place) -> None:
        """Ends a wait. A stream that has places by then keeps them."""
        if place in self._waiting:
            self._waiting.remove(place)

    def pass_late_on(self, now: float) -> Actions:
        """Gives the places of late rollouts to actors that wait for places, or else for the next round.

        The first round is patient until half of it has arrived, because its first rollouts say little about the others.
        """
        allowed_s = max(_LEAST_S, _LATE * max(self._longest_s, self._longest_before_s))
        if not self._longest_before_s and 2 * self._n_came < self._batch_size:
            allowed_s *= _PATIENCE
        actions: list[Callable[[], None]] = []
        while self._is_wanted() and self._playing and now - self._playing[0].since > allowed_s:
            late = self._playing[0]
            late.is_held, late.is_late = False, True
            self._leave(late)
            actions += [*self._hand_out(now), *self._call_back()]
        return actions

    def _is_wanted(self) -> bool:
        """Returns whether another actor would play in the newest round."""
        return bool(self._waiting) or any(place.recall is not None for place in self._ahead)

    def _play(self, place: Place, now: float) -> None:
        """Records that the rollout for places in the newest round can begin."""
        place.version, place.since = self._version, now
        self._playing.append(place)
        if place.played_version is None:
            self._n_first += place.n_trajectories
        else:
            self._n_later += place.n_trajectories

    def _leave(self, place: Place) -> bool:
        """Frees places that are held in the newest round; returns False for other places."""
        if place not in self._playing:
            return False
        self._playing.remove(place)
        if place.played_version is None:
            self._n_first -= place.n_trajectories
        else:
            self._n_later -= place.n_trajectories
        return True

    def _hand_out(self, now: float) -> Actions:
        """Gives places of the newest round to waiting actors."""
        actions: list[Callable[[], None]] = []
        for place in [*self._waiting]:
            if self._n_came + self._n_later >= self._batch_size:
                break
            if self._has_room_for(place):
                self._waiting.remove(place)
                self._play(place, now)
                actions.append(place.wake)
        return actions

    def _call_back(self) -> Actions:
        """Recalls as many actors of the next round as the newest round has free places."""
        actions: list[Callable[[], None]] = []
        n_free = self._batch_size - self._n_came - self._n_later - self._n_first
        for place in self._ahead:
            if n_free <= 0:
                break
            n_free -= place.n_trajectories
            if place.recall is not None:
                actions.append(place.recall)
                place.recall = None
        return actions

    def _has_room_for(self, place: Place) -> bool:
        """Returns whether the newest round has places for an actor that has played before."""
        n_taken = self._n_came + self._n_later
        if place.played_version == self._version:
            n_taken += self._n_first
        return n_taken < self._batch_size
