"""Lets actors play just the trajectories that each update needs, with the policy of the update before."""

import threading
from collections import Counter, deque
from collections.abc import Callable

# A waiting stream checks so often that it is still open.
_CHECK_S = 0.9


class _Turn:
    """The turn of a stream that waits for places.

    Attributes:
        n_trajectories: The trajectories of its rollout.
        version: The round in which it has places; 0: it has none yet.
        is_over: Held while the stream waits.
    """

    __slots__ = ("is_over", "n_trajectories", "version")

    def __init__(self, n_trajectories: int) -> None:
        self.n_trajectories = n_trajectories
        self.version = 0
        self.is_over = threading.Lock()
        self.is_over.acquire()


class Rounds:
    """The places of trajectories in rounds: those of round v are played with policy version v. Any thread may call.

    An update takes `batch_size` trajectories and casts the next version, so a round has as many places. An actor takes
    places before it plays; if the round is full, it waits for the next one. A place that is given back, because its
    actor has gone or what it played fills no batch, goes to an actor that waits. Those that wait get places in the
    order in which they came; only the threads of those that get some are woken.

    Invariant: the places taken of a round never exceed `batch_size` by more than one rollout.

    Args:
        batch_size: B, in trajectories.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._lock = threading.Lock()  # guards all below
        self._version = 0
        self._taken: Counter[int] = Counter()
        # Not empty only while the newest round is full.
        self._turns: deque[_Turn] = deque()

    @property
    def n_waiting(self) -> int:
        """The rollouts that wait for places."""
        with self._lock:
            return len(self._turns)

    def begin(self, version: int) -> None:
        """Begins the round of the version that is cast."""
        with self._lock:
            self._version = version
            for past in [taken for taken in self._taken if taken < version]:
                del self._taken[past]
            self._hand_out()

    def book(self, n_trajectories: int) -> int:
        """Takes places in the first round that has some, from this one on; never waits.

        Returns:
            The version of the round.
        """
        with self._lock:
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
        with self._lock:
            if self._take(self._version, n_trajectories):
                return self._version
            turn = _Turn(n_trajectories)
            self._turns.append(turn)
        is_over = False
        try:
            while not is_over and is_active():
                is_over = turn.is_over.acquire(timeout=_CHECK_S)
        finally:
            if not is_over:
                self._give_up(turn)
        return turn.version

    def give_back(self, n_trajectories: int, version: int) -> None:
        """Gives places back whose rollout will not come."""
        with self._lock:
            if version in self._taken:
                self._taken[version] -= n_trajectories
                self._hand_out()

    def replace(self, n_trajectories: int) -> None:
        """Opens places in the newest round for others of its trajectories, which have come and fill no batch."""
        with self._lock:
            self._taken[self._version] -= n_trajectories
            self._hand_out()

    def _give_up(self, turn: _Turn) -> None:
        """Ends a wait; a stream that has got places meanwhile keeps them."""
        with self._lock:
            if turn in self._turns:
                self._turns.remove(turn)

    def _hand_out(self) -> None:
        """Gives places of the newest round to those that wait. Called with the lock held."""
        while self._turns and self._take(self._version, self._turns[0].n_trajectories):
            turn = self._turns.popleft()
            turn.version = self._version
            turn.is_over.release()

    def _take(self, version: int, n_trajectories: int) -> bool:
        if self._taken[version] >= self._batch_size:
            return False
        self._taken[version] += n_trajectories
        return True
