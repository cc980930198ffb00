"""Lets actors play just the trajectories that each update needs, with the policy of the update before."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from rollcast.services.process import waiting

# The first stream in line looks so often for rollouts that are late.
_LATE_LOOK_S: Final = 0.25

# A rollout of the round is late if it takes so many times as long as any that has come, and at least so many seconds.
_LATE: Final = 3.0
_LEAST_S: Final = 0.25


class Place:
    """The places of one rollout in a round. Guarded by the lock of `Rounds`; any thread may read.

    Attributes:
        n_trajectories: The trajectories of the rollout.
        version: The round; 0 while they are waited for.
        is_held: True until the rollout has come, or they are given back or to others.
        is_late: True if they were given to others, because the rollout did not come.
        since: The monotonic time at which it could begin.
    """

    __slots__ = ("is_held", "is_late", "is_over", "n_trajectories", "recall", "since", "version")

    def __init__(self, n_trajectories: int, version: int = 0, recall: Callable[[], None] | None = None) -> None:
        self.n_trajectories = n_trajectories
        self.version = version
        self.is_held = True
        self.is_late = False
        self.since = time.monotonic()
        # Ends the stream, whose actor comes back; None: it was called.
        self.recall = recall
        # Held while the stream waits.
        self.is_over = threading.Lock()
        self.is_over.acquire()


class Rounds:
    """The places of trajectories in rounds: those of round v are played with policy version v. Any thread may call.

    An update takes `batch_size` trajectories and casts the next version, so a round has as many places. An actor takes
    places before it plays; if the round is full, it waits for the next one. A place that is given back, because its
    actor has gone or what it played fills no batch, goes to an actor that waits. Those that wait get places in the
    order in which they came; only the threads of those that get some are woken. If nobody waits, actors that were told
    to play a later round are called back, or nobody would play the newest one.

    Nobody waits for an actor that is much slower than the others. Once half of a round has come, a rollout that is late
    loses its places to one that waits. If it comes before the round is full, it counts; else it is too old for any.

    Invariant: the places taken of a round never exceed `batch_size` by more than one rollout.

    Args:
        batch_size: B, in trajectories.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._lock = threading.Lock()  # guards all below
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
        with self._lock:
            return len(self._waiting)

    def begin(self, version: int) -> None:
        """Begins the round of the version that is cast."""
        with self._lock:
            self._version = version
            for past in [taken for taken in self._taken if taken < version]:
                del self._taken[past]
            self._n_came, self._longest_s = 0, 0.0
            self._playing = []
            for place in self._ahead:
                if place.version == version:
                    self._play(place)
            self._ahead = deque(place for place in self._ahead if place.version > version)
            self._hand_out()
        self._call_back()

    def book(self, n_trajectories: int, *, recall: Callable[[], None] | None = None) -> Place:
        """Takes places in the first round that has some, from this one on; never waits.

        Args:
            n_trajectories: The trajectories of a rollout.
            recall: Ends the stream; called if these are places of a later round, and an earlier one lacks a rollout.
        """
        with self._lock:
            version = self._version
            while not self._take(version, n_trajectories):
                version += 1
            place = Place(n_trajectories, version, recall)
            if version > self._version:
                self._ahead.append(place)
            else:
                self._play(place)
            return place

    def ask(self, n_trajectories: int) -> Place:
        """Takes places in the newest round if it has some; else returns those to `wait` for."""
        with self._lock:
            place = Place(n_trajectories)
            if self._take(self._version, n_trajectories):
                place.version = self._version
                place.is_over.release()
                self._play(place)
            else:
                self._waiting.append(place)
            return place

    def wait(self, place: Place, *, is_active: Callable[[], bool]) -> None:
        """Waits until places that were asked for are there.

        Args:
            place: The places.
            is_active: Called at least every second during the wait; the wait ends once it returns False.
        """
        is_over = False
        try:
            is_over = waiting.acquire(
                place.is_over,
                is_active=is_active,
                look_s=lambda: _LATE_LOOK_S if self._is_first(place) else waiting.LOOK_S,
            )
        finally:
            if not is_over:
                self._give_up(place)

    def played(self, place: Place, policy_version: int) -> None:
        """Notes that a rollout has come while these places were held.

        One of an older policy, or of one that an earlier learner cast, was sent again: it had its places before.
        """
        with self._lock:
            if place.version <= policy_version <= self._version:
                place.is_held = False
                if place in self._playing:
                    self._playing.remove(place)
                    self._n_came += place.n_trajectories
                    self._longest_s = max(self._longest_s, time.monotonic() - place.since)

    def give_back(self, place: Place) -> None:
        """Gives places back whose rollout will not come; does nothing if they are not held any more."""
        with self._lock:
            if place.is_held:
                place.is_held = False
                self._free(place)
        self._call_back()

    def replace(self, n_trajectories: int) -> None:
        """Opens places in the newest round for others of its trajectories, which have come and fill no batch."""
        with self._lock:
            self._taken[self._version] -= n_trajectories
            self._hand_out()
        self._call_back()

    def _is_first(self, place: Place) -> bool:
        """Returns whether a place is the next to be handed out, after giving the places of those that are late away."""
        with self._lock:
            if not self._waiting or self._waiting[0] is not place:
                return False
            allowed_s = max(_LEAST_S, _LATE * self._longest_s)
            while self._waiting and self._playing and 2 * self._n_came >= self._batch_size:
                late = self._playing[0]
                if time.monotonic() - late.since <= allowed_s:
                    break
                late.is_held, late.is_late = False, True
                self._free(late)
            return True

    def _play(self, place: Place) -> None:
        """Notes that the rollout of places in the newest round can begin. Called with the lock held."""
        place.since = time.monotonic()
        self._playing.append(place)

    def _give_up(self, place: Place) -> None:
        """Ends a wait; a stream that has got places meanwhile keeps them."""
        with self._lock:
            if place in self._waiting:
                self._waiting.remove(place)

    def _free(self, place: Place) -> None:
        """Lets others have places that are held, or waited for, no more. Called with the lock held."""
        if place in self._waiting:
            self._waiting.remove(place)
        elif place.version in self._taken:
            for places in (self._ahead, self._playing):
                if place in places:
                    places.remove(place)
            self._taken[place.version] -= place.n_trajectories
            self._hand_out()

    def _hand_out(self) -> None:
        """Gives places of the newest round to those that wait. Called with the lock held."""
        while self._waiting and self._take(self._version, self._waiting[0].n_trajectories):
            place = self._waiting.popleft()
            place.version = self._version
            place.is_over.release()
            self._play(place)

    def _call_back(self) -> None:
        """Calls back as many actors of later rounds as the newest has places for. Called without the lock."""
        recalls: list[Callable[[], None]] = []
        with self._lock:
            n_free = self._batch_size - self._taken[self._version]
            for place in self._ahead:
                if n_free <= 0:
                    break
                n_free -= place.n_trajectories
                if place.recall is not None:
                    recalls.append(place.recall)
                    place.recall = None
        for recall in recalls:
            recall()

    def _take(self, version: int, n_trajectories: int) -> bool:
        if self._taken[version] >= self._batch_size:
            return False
        self._taken[version] += n_trajectories
        return True
