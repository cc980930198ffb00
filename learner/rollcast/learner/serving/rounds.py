"""Limits actors to the trajectories that each update needs, played with the policy of the previous update."""

import threading
import time
from collections.abc import Callable
from typing import Final

from rollcast.learner.serving.round_places import Actions, Place, RoundPlaces
from rollcast.services.process import waiting

# The interval at which the first stream in line checks for late rollouts.
_LATE_LOOK_S: Final = 0.25


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
        """Takes places in the first round that has free places; never waits. See `RoundPlaces.book`."""
        with self._lock:
            return self._places.book(n_trajectories, time.monotonic(), recall=recall)

    def ask(self, n_trajectories: int) -> Place:
        """Takes places in the newest round if it has free places; else returns places to `wait` for."""
        is_over = threading.Lock()
        is_over.acquire()
        with self._lock:
            place = self._places.ask(n_trajectories, time.monotonic(), wake=is_over.release)
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
            waiting.acquire(
                is_over,
                is_active=is_active,
                look_s=lambda: _LATE_LOOK_S if self._is_first(place) else waiting.LOOK_S,
            )
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

    def _is_first(self, place: Place) -> bool:
        """Gives away the places of late rollouts, then returns whether a place is next in line."""
        with self._lock:
            if not self._places.is_first(place):
                return False
            actions = self._places.pass_late_on(time.monotonic())
        _do(actions)
        return True


def _do(actions: Actions) -> None:
    for action in actions:
        action()
