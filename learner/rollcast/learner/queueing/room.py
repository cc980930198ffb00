"""Decides which rollouts are in a queue, and which wait for room: a state machine without threads or clocks."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rollcast.services.rollouts.rollouts import Rollout


class Turn:
    """The place of a rollout in the line for room. Only the queue changes it.

    Attributes:
        rollout: The rollout.
        arrived_at: The rollout's time of arrival, by `time.monotonic`.
        is_in: True if the rollout is in the queue; None while it waits.

    Args:
        rollout: The rollout.
        arrived_at: Its time of arrival.
        decided: Called once at the end of the wait, under the queue's lock. It must not call the queue.
    """

    __slots__ = ("_decided", "arrived_at", "is_in", "rollout")

    def __init__(self, rollout: Rollout, arrived_at: float, decided: Callable[[], None]) -> None:
        self.rollout = rollout
        self.arrived_at = arrived_at
        self.is_in: bool | None = None
        self._decided = decided

    def decide(self, *, is_in: bool) -> None:
        """Ends the wait.

        Args:
            is_in: True if the rollout is in the queue.
        """
        self.is_in = is_in
        self._decided()


class Taken(NamedTuple):
    """Taken trajectories: the arguments of a `RolloutSlice`."""

    rollout: Rollout
    start: int
    stop: int
    arrived_at: float


class Room:
    """The rollouts of a queue and its free room, counted in trajectories. `RolloutQueue` holds the lock.

    Invariant: a bound limits trajectories that are queued, keep their room after `take`, or have promised room.
    The bound is the capacity plus the trajectories that the consumer lacks for its batch. One exception is a rollout
    without a reservation for which the consumer waits, or that is larger than the queue. Such a rollout may exceed the
    bound by at most its own size. Promises alone never exceed the capacity. While the consumer waits, the room of
    rollouts that are queued for its batch may be promised. The room that the batch still lacks is never promised,
    because other rollouts may take it first.

    Attributes:
        capacity: The capacity in trajectories.
        size: The number of queued trajectories.
        n_kept: The number of taken trajectories that keep their room.
        turns: The rollouts that wait for room, in order of arrival.
        n_awaited: The number of trajectories for which the consumer waits; 0 while it does not wait.
        is_closed: True if further rollouts are refused.
    """

    __slots__ = (
        "_head_offset",
        "_is_wanted",
        "_n_reserved",
        "_rollouts",
        "capacity",
        "is_closed",
        "n_awaited",
        "n_kept",
        "size",
        "turns",
    )

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.n_kept = 0
        self.turns: deque[Turn] = deque()
        self.n_awaited = 0
        self.is_closed = False
        self._n_reserved = 0
        # each with the time at which it came
        self._rollouts: deque[tuple[Rollout, float]] = deque()
        self._head_offset = 0
        # True once the consumer has found the queue empty: it takes whatever comes next.
        self._is_wanted = False

    def offer(self, turn: Turn, n_reserved: int) -> None:
        """Takes a rollout, refuses it, or registers it as waiting; its turn holds the outcome.

        Args:
            turn: The rollout's turn. An immediate decision does not call `decided`.
            n_reserved: The trajectories reserved for this rollout, at least its own number; 0: none.
        """
        self._n_reserved -= n_reserved
        if self.is_closed:
            turn.is_in = False
        elif n_reserved or (not self.turns and self._fits(turn.rollout.n_envs)):
            self._append(turn)
            turn.is_in = True
            if self.turns:
                self._let_in()
        else:
            self.turns.append(turn)

    def withdraw(self, turn: Turn) -> None:
        """Ends the wait of a rollout without calling `decided`. Does nothing if the wait is over."""
        if turn.is_in is None:
            self.turns.remove(turn)
            turn.is_in = False
            self._let_in()

    def reserve(self, n_trajectories: int) -> bool:
        """Reserves room for a coming rollout; returns False if no room is left.

        At most `capacity` trajectories are promised room or queued for a batch after the consumer's next one. So a
        rollout with a reservation always fits.
        """
        n_left_queued = max(0, self.size - self.n_awaited) + self.n_kept
        if n_left_queued + self._n_reserved + n_trajectories > self.capacity:
            return False
        self._n_reserved += n_trajectories
        return True

    def release(self, n_trajectories: int) -> None:
        """Cancels a reservation."""
        self._n_reserved -= n_trajectories
        self._let_in()

    def begin_wait(self, n_trajectories: int) -> None:
        """Records the number of trajectories for which the consumer waits, until the next `take`."""
        self.n_awaited, self._is_wanted = n_trajectories, True
        if self.turns:
            self._let_in()

    def is_enough(self, n_trajectories: int) -> bool:
        """Returns whether the consumer can stop waiting for a number of trajectories.

        Either enough trajectories are queued, or no more can arrive before the consumer takes the queued trajectories.
        """
        return self.is_closed or self.size >= n_trajectories or bool(self.turns and self._rollouts)

    def take(self, max_trajectories: int, *, keep_room: bool) -> Taken | None:
        """Takes up to `max_trajectories` trajectories of the oldest rollout; None if no rollout is queued.

        Args:
            max_trajectories: The most trajectories to take.
            keep_room: True: the trajectories count as queued until `give_room`.
        """
        self.n_awaited = 0
        if not self._rollouts:
            if keep_room:
                return None
            self._is_wanted = True
            if self.turns:
                self._let_in()
            if not self._rollouts:
                return None
        self._is_wanted = False
        head, arrived_at = self._rollouts[0]
        start = self._head_offset
        stop = min(head.n_envs, start + max_trajectories)
        if stop == head.n_envs:
            self._rollouts.popleft()
            self._head_offset = 0
        else:
            self._head_offset = stop
        self.size -= stop - start
        if keep_room:
            self.n_kept += stop - start
        if self.turns:
            self._let_in()
        return Taken(head, start, stop, arrived_at)

    def give_room(self) -> None:
        """Frees the room that taken trajectories keep."""
        self.n_kept = 0
        self._let_in()

    def close(self) -> None:
        """Refuses waiting and further rollouts. Queued rollouts can still be taken."""
        self.is_closed = True
        for turn in self.turns:
            turn.decide(is_in=False)
        self.turns.clear()

    def _append(self, turn: Turn) -> None:
        self._rollouts.append((turn.rollout, turn.arrived_at))
        self.size += turn.rollout.n_envs

    def _let_in(self) -> None:
        """Admits waiting rollouts while there is room."""
        while self.turns and self._fits(self.turns[0].rollout.n_envs):
            turn = self.turns.popleft()
            self._append(turn)
            turn.decide(is_in=True)

    def _fits(self, n_trajectories: int) -> bool:
        # The consumer will take at once the trajectories that it waits for.
        n_queued = self.size + self.n_kept
        if n_queued + self._n_reserved + n_trajectories <= self.capacity + self.n_awaited:
            return True
        return not n_queued and (self._is_wanted or not self._n_reserved)
