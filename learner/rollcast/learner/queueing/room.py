"""Decides which rollouts are in a queue, and which wait for room: a state machine without threads and clocks."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rollcast.services.rollouts.rollouts import Rollout


class Turn:
    """The place of a rollout among those that wait for room; its queue alone changes it.

    Attributes:
        rollout: The rollout.
        arrived_at: The time at which it came, by `time.monotonic`.
        is_in: Whether it is in the queue; None: it waits.

    Args:
        rollout: The rollout.
        arrived_at: The time at which it came.
        decided: Called once when the wait is over, with the queue's lock held: it must not call the queue.
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
            is_in: Whether the rollout is in the queue.
        """
        self.is_in = is_in
        self._decided()


class Taken(NamedTuple):
    """Trajectories that were taken: the arguments of a `RolloutSlice`."""

    rollout: Rollout
    start: int
    stop: int
    arrived_at: float


class Room:
    """The rollouts of a queue, and the room for others, counted in trajectories. `RolloutQueue` holds its lock.

    Invariant: the trajectories that are queued, were taken and keep their room, or are promised room never exceed the
    capacity plus the trajectories that the consumer lacks for its batch. There is one exception: a rollout without a
    reservation for which the consumer waits, or that is larger than the queue, may exceed it by its own size at most.
    Promises alone never exceed the capacity. While the consumer waits, queued rollouts that it will take leave their
    room to promises. The trajectories that it still lacks are never promised, because other rollouts may fill them
    first.

    Attributes:
        capacity: The capacity in trajectories.
        size: The trajectories that are queued.
        n_kept: The trajectories that were taken, and keep their room.
        turns: The rollouts that wait for room, in the order in which they came.
        n_awaited: The trajectories that the consumer waits for; 0 while it does not wait.
        is_closed: Whether every further rollout is refused.
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
        """Takes a rollout in, refuses it, or lets it wait; its turn says which.

        Args:
            turn: The rollout's turn. It is not told of a decision that is made now.
            n_reserved: The trajectories that `reserve` set aside for this rollout, at least its own; 0 if none.
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
        """Ends the wait of a rollout, without telling its turn; changes nothing if it has ended."""
        if turn.is_in is None:
            self.turns.remove(turn)
            turn.is_in = False
            self._let_in()

    def reserve(self, n_trajectories: int) -> bool:
        """Sets room aside for a coming rollout; returns False if there is none.

        At most `capacity` trajectories are promised room or queued for a later batch than the one that the consumer
        waits for, so a rollout with a reservation always fits.
        """
        n_left_queued = max(0, self.size - self.n_awaited) + self.n_kept
        if n_left_queued + self._n_reserved + n_trajectories > self.capacity:
            return False
        self._n_reserved += n_trajectories
        return True

    def release(self, n_trajectories: int) -> None:
        """Gives a reservation back."""
        self._n_reserved -= n_trajectories
        self._let_in()

    def begin_wait(self, n_trajectories: int) -> None:
        """Notes the number of trajectories that the consumer waits for, until it takes some."""
        self.n_awaited, self._is_wanted = n_trajectories, True
        if self.turns:
            self._let_in()

    def is_enough(self, n_trajectories: int) -> bool:
        """Returns whether the consumer has to wait no longer for so many trajectories.

        It has enough trajectories, or none can come before it takes the queued ones.
        """
        return self.is_closed or self.size >= n_trajectories or bool(self.turns and self._rollouts)

    def take(self, max_trajectories: int, *, keep_room: bool) -> Taken | None:
        """Takes up to `max_trajectories` of the oldest rollout; None if there is none.

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
        """Gives up the room of the trajectories that were taken and keep it."""
        self.n_kept = 0
        self._let_in()

    def close(self) -> None:
        """Refuses every rollout that waits, and every further one. Those in the queue can still be taken."""
        self.is_closed = True
        for turn in self.turns:
            turn.decide(is_in=False)
        self.turns.clear()

    def _append(self, turn: Turn) -> None:
        self._rollouts.append((turn.rollout, turn.arrived_at))
        self.size += turn.rollout.n_envs

    def _let_in(self) -> None:
        """Lets in the rollouts that wait, as far as there is room."""
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
