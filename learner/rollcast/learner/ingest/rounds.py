"""Lets actors play just the trajectories that each update needs, with the policy of the update before."""

import threading
from collections import Counter
from collections.abc import Callable

# A waiting stream checks so often that it is still open.
_CHECK_S = 0.5


class Rounds:
    """The places of trajectories in rounds: those of round v are played with policy version v. Any thread may call.

    An update takes `batch_size` trajectories and casts the next version, so a round has as many places. An actor takes
    places before it plays; if the round is full, it waits for the next one. A place that is given back, because its
    actor has gone, goes to an actor that waits.

    Invariant: the places taken of a round never exceed `batch_size` by more than one rollout.

    Args:
        batch_size: B, in trajectories.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._changed = threading.Condition()  # guards both below
        self._version = 0
        self._taken: Counter[int] = Counter()

    def begin(self, version: int) -> None:
        """Begins the round of the version that is cast."""
        with self._changed:
            self._version = version
            for past in [taken for taken in self._taken if taken < version]:
                del self._taken[past]
            self._changed.notify_all()

    def book(self, n_trajectories: int) -> int:
        """Takes places in the first round that has some, from this one on; never waits.

        Returns:
            The version of the round.
        """
        with self._changed:
            version = self._version
            while not self._take(version, n_trajectories):
                version += 1
            return version

    def wait(self, n_trajectories: int, *, is_active: Callable[[], bool]) -> int:
        """Takes places in the newest round, and waits while it is full.

        Args:
            n_trajectories: The trajectories of a rollout.
            is_active: Called now and then during the wait; the wait ends once it returns False.

        Returns:
            The version of the round; 0 if `is_active` returned False.
        """
        with self._changed:
            while not self._take(self._version, n_trajectories):
                if not is_active():
                    return 0
                self._changed.wait(_CHECK_S)
            return self._version

    def give_back(self, n_trajectories: int, version: int) -> None:
        """Gives places back whose rollout will not come."""
        with self._changed:
            if version in self._taken:
                self._taken[version] -= n_trajectories
                self._changed.notify_all()

    def _take(self, version: int, n_trajectories: int) -> bool:
        if self._taken[version] >= self._batch_size:
            return False
        self._taken[version] += n_trajectories
        return True
