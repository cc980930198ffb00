"""Limits actors to the trajectories that each update needs, played with the policy of the previous update."""

import threading
import time
from collections.abc import Callable

from rollcast.learner.serving.round_places import Actions, Place, RoundPlaces
from rollcast.services.process import waiting


class Rounds:
    """Blocks streams until `RoundPlaces` assigns them places in rounds. Thread-safe.

    A wake-up reaches only the threads whose streams get places.

    Args:
        batch_size: B, in trajectories.
    """

    def __init__(self, batch_size: int) -> None:
        self._lock = threading.Lock()  # guards both below
        self._places = RoundPlaces(batch_size)
        # For each awaited place: a lock that is held until the place is assigned.
        self._waits: dict[Place, threading.Lock] = {}

    @property
    def n_waiting(self) -> int:
        """The number of rollouts that wait for places."""
        with self._lock:
            return self._places.n_waiting

    def begin(self, version: int) -> None:
        """Begins the round of a newly published version."""
        with self._lock:
            actions = self._places.begin(version, time.monotonic())
        _do(actions)

    def book(self, n_trajectories: int, *, recall: Callable[[], None] | None = None) -> Place:
        """Takes places for the first rollout of a stream; never waits. See `RoundPlaces.book`."""
        with self._lock:
            return self._places.book(n_trajectories, time.monotonic(), recall=recall)

    def ask(self, n_trajectories: int, *, played_version: int) -> Place:
        """Takes places in the newest round if it has free places; else returns places to `wait` for.

        Args:
            n_trajectories: The trajectories of a rollout.
            played_version: The round of the stream's last rollout.
        """
        is_over = threading.Lock()
        is_over.acquire()
        with self._lock:
            place = self._places.ask(
                n_trajectories, time.monotonic(), played_version=played_version, wake=is_over.release
            )
            if not place.version:
                self._waits[place] = is_over
            return place

    def wait(self, place: Place, *, is_active: Callable[[], bool]) -> None:
        """Waits for requested places.

        Args:
            place: The places.
            is_active: Called at least once a second during the wait; the wait ends once it returns False.
        """
        with self._lock:
            is_over = self._waits.get(place)
        if is_over is None:
            return
        try:
            waiting.acquire(is_over, is_active=is_active)
        finally:
            with self._lock:
                self._places.give_up(place)
                self._waits.pop(place, None)

    def played(self, place: Place, policy_version: int) -> None:
        """Records that a rollout arrived while these places were held; see `RoundPlaces.played`."""
        with self._lock:
            # The places may have been assigned before the wait began.
            self._waits.pop(place, None)
            self._places.played(place, policy_version, time.monotonic())

    def give_back(self, place: Place) -> None:
        """Returns the places of a rollout that will not arrive. Does nothing if these places are not held any more."""
        with self._lock:
            self._waits.pop(place, None)
            actions = self._places.give_back(place, time.monotonic())
        _do(actions)

    def replace(self, n_trajectories: int) -> None:
        """Reopens places in the newest round for trajectories that arrived but fill no batch."""
        with self._lock:
            actions = self._places.replace(n_trajectories, time.monotonic())
        _do(actions)

    def pass_late_on(self) -> None:
        """Gives the places of late rollouts to other actors; called while the trainer waits for rollouts."""
        with self._lock:
            actions = self._places.pass_late_on(time.monotonic())
        _do(actions)


def _do(actions: Actions) -> None:
    for action in actions:
        action()
