"""Queues rollouts between the threads that receive them and the thread that batches them."""

import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.queueing.room import Room, Turn
from rollcast.services.columns.columns import of_trajectories, take_common
from rollcast.services.errors import ConfigurationError
from rollcast.services.process.waiting import acquire
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.rollouts.statistics import EventValue


def queue_capacity(batch_size: int, queue_out_of_sync_factor: float) -> int:
    """Returns `ceil(batch_size * queue_out_of_sync_factor)` trajectories, by exact decimal arithmetic.

    Args:
        batch_size: B, at least 1.
        queue_out_of_sync_factor: Used as an exact decimal number: 1.1 times 100 is 110, not 111.

    Raises:
        ConfigurationError: The factor is not a number above 0.
    """
    if not 0.0 < queue_out_of_sync_factor < math.inf:  # NaN fails both comparisons
        raise ConfigurationError(
            f"queue_out_of_sync_factor is {queue_out_of_sync_factor}; expected a number above 0, so that the queue "
            f"holds at least one of the {batch_size} rollouts of a batch; set it to 1.0 for one batch"
        )
    return math.ceil(batch_size * Fraction(repr(float(queue_out_of_sync_factor))))


class SliceName(NamedTuple):
    """Identifies some trajectories of a rollout: a `RolloutSlice` without its arrays."""

    actor_id: str
    incarnation: int
    sequence: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class RolloutSlice:
    """The trajectories `start:stop` of a rollout."""

    rollout: Rollout
    start: int
    stop: int
    # The arrival time of the rollout, by `time.monotonic`; None: it was played in this process, or recovered.
    arrived_at: float | None = None

    @property
    def n_trajectories(self) -> int:
        """The number of trajectories."""
        return self.stop - self.start

    @property
    def name(self) -> SliceName:
        """The name of these trajectories."""
        rollout = self.rollout
        return SliceName(rollout.actor_id, rollout.incarnation, rollout.sequence, self.start, self.stop)

    @property
    def events(self) -> tuple[EventValue, ...]:
        """The policy's events of the whole rollout. Only the slice with the first trajectory has these events."""
        return self.rollout.events if self.start == 0 else ()

    def cut(self, max_trajectories: int) -> tuple[Self, Self | None]:
        """Returns the first `max_trajectories` trajectories, and the rest; None if there is no rest."""
        cut = self.start + max_trajectories
        if cut >= self.stop:
            return self, None
        return dataclasses.replace(self, stop=cut), dataclasses.replace(self, start=cut)

    def to_rollout(self) -> Rollout:
        """Returns these trajectories as a separate rollout, whose arrays are views of the original."""
        whole, cut = self.rollout, slice(self.start, self.stop)
        if self.n_trajectories == whole.n_envs:
            return whole
        wanted = (whole.final_index[:, 1] >= self.start) & (whole.final_index[:, 1] < self.stop)
        return with_trajectories(
            whole,
            cut,
            wanted,
            whole.final_index[wanted] - np.array([0, self.start], np.int32),
            episodes=tuple(
                episode._replace(env_index=episode.env_index - self.start)
                for episode in whole.episodes
                if self.start <= episode.env_index < self.stop
            ),
            env_seeds=whole.env_seeds[cut],
            events=self.events,
        )


def with_trajectories(
    rollout: Rollout,
    envs: slice | NDArray[np.int64],
    finals: NDArray[np.bool_],
    final_index: NDArray[np.int32],
    **changes: Any,  # noqa: ANN401 - other fields of a rollout
) -> Rollout:
    """Returns a rollout with some of its trajectories.

    Args:
        rollout: The rollout.
        envs: The environments to keep.
        finals: `[N]`, True for the final observations to keep.
        final_index: `[n, 2]`, step and new number of the environment of each kept final observation.
        changes: Changes to other fields.
    """
    index = of_trajectories(envs, finals)
    return dataclasses.replace(
        rollout,
        substeps={key: columns.take(index) for key, columns in rollout.substeps.items()},
        policy_versions=None if rollout.policy_versions is None else rollout.policy_versions[:, envs],
        **{**take_common(rollout, index), "final_index": final_index},
        **changes,
    )


class RolloutQueue:
    """A bounded first-in, first-out queue of rollouts, counted in trajectories. `Room` decides which rollouts enter.

    Any number of threads may call `put` and `offer`; only one thread at a time may call `get`. While the queue is full,
    `put` blocks and the turn of an `offer` waits. This back-pressure reaches the actors. Rollouts enter in order of
    arrival, so no actor overtakes another of the same speed twice. The thread that frees room admits the next rollouts
    and wakes only their threads. So the cost of a rollout does not depend on the number of waiting threads.

    Args:
        capacity: The capacity in trajectories, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()  # guards everything below
        self._room = Room(capacity)
        self._arrived = threading.Condition(self._lock)
        # The number of trajectories for which the assembling thread waits; 0 while it does not wait.
        self._n_awaited_ahead = 0
        self._arrived_ahead = threading.Condition(self._lock)

    @property
    def size(self) -> int:
        """The number of queued trajectories, plus taken trajectories that still occupy room."""
        with self._lock:
            return self._room.size + self._room.n_kept

    @property
    def n_waiting(self) -> int:
        """The number of rollouts that wait for room."""
        with self._lock:
            return len(self._room.turns)

    def put(self, rollout: Rollout, *, is_active: Callable[[], bool], n_reserved: int = 0) -> bool:
        """Waits until a rollout fits, and appends it.

        Args:
            rollout: The rollout.
            is_active: Called at least once a second during the wait; the wait ends once it returns False.
            n_reserved: The trajectories reserved for this rollout, at least its own number; 0: none.

        Returns:
            False if the rollout is not in the queue, because the queue was closed or `is_active` returned False.
        """
        is_over = threading.Lock()
        is_over.acquire()
        turn = self.offer(rollout, decided=is_over.release, n_reserved=n_reserved)
        if turn.is_in is None:
            try:
                acquire(is_over, is_active=is_active)
            finally:
                if turn.is_in is None:
                    self.withdraw(turn)
        return bool(turn.is_in)

    def offer(self, rollout: Rollout, *, decided: Callable[[], None], n_reserved: int = 0) -> Turn:
        """Appends a rollout, or registers it as waiting for its turn. Never blocks.

        Args:
            rollout: The rollout.
            decided: Called at the end of a wait, by the thread that ends the wait. It runs under the lock and must not
                call the queue.
            n_reserved: See `put`.

        Returns:
            Its turn; `is_in` is set if the rollout does not wait.
        """
        turn = Turn(rollout, time.monotonic(), decided)
        with self._lock:
            self._room.offer(turn, n_reserved)
            if turn.is_in is None or 0 < self._room.n_awaited <= self._room.size or self._n_awaited_ahead:
                self._wake()
        return turn

    def withdraw(self, turn: Turn) -> None:
        """Ends the wait of a rollout without calling `decided`. Does nothing if the wait is over.

        Args:
            turn: Its turn, from `offer`; `is_in` holds the outcome afterwards.
        """
        with self._lock:
            self._room.withdraw(turn)
            self._wake()

    def _wake(self) -> None:
        """Wakes the threads for which enough trajectories have arrived. The caller holds the lock."""
        n_awaited = self._room.n_awaited
        if n_awaited and (self._room.size >= n_awaited or self._room.is_enough(n_awaited)):
            self._arrived.notify()
        if self._n_awaited_ahead and self._room.size >= self._n_awaited_ahead:
            self._arrived_ahead.notify()

    def reserve(self, n_trajectories: int) -> bool:
        """Reserves room for a coming rollout; returns False if no room is left. Never waits."""
        with self._lock:
            return self._room.reserve(n_trajectories)

    def release(self, n_trajectories: int) -> None:
        """Cancels a reservation."""
        with self._lock:
            self._room.release(n_trajectories)
            self._wake()

    def wait_ahead(self, n_trajectories: int, *, is_wanted: Callable[[], bool], timeout_s: float) -> bool:
        """Waits for trajectories to take with `keep_room`. Called by one thread, in addition to the consumer's.

        Args:
            n_trajectories: The number of trajectories that must be queued.
            is_wanted: Called at the beginning, and after every wake-up; the wait ends once it returns False.
            timeout_s: The seconds to wait.

        Returns:
            True if that many are queued.
        """
        with self._lock:
            self._n_awaited_ahead = n_trajectories
            self._arrived_ahead.wait_for(lambda: self._room.size >= n_trajectories or not is_wanted(), timeout_s)
            self._n_awaited_ahead = 0
            return self._room.size >= n_trajectories

    def end_wait_ahead(self) -> None:
        """Makes `wait_ahead` call `is_wanted` again."""
        with self._lock:
            self._arrived_ahead.notify()

    def give_room(self) -> None:
        """Frees the room of trajectories that were taken with `keep_room`."""
        with self._lock:
            self._room.give_room()
            self._wake()

    def get(
        self, max_trajectories: int, timeout_s: float, *, enough: int = 1, keep_room: bool = False
    ) -> RolloutSlice | None:
        """Takes up to `max_trajectories` trajectories of the oldest rollout.

        Args:
            max_trajectories: The most trajectories to take.
            timeout_s: The seconds to wait.
            enough: The wait ends once this number of trajectories is queued or a producer waits for room, so one
                wake-up serves a whole batch.
            keep_room: True: the trajectories count as queued until `give_room`, so that no others take their place.
                Only supported without a wait.

        Returns:
            A slice; None if the queue was still empty after `timeout_s`.
        """
        room = self._room
        with self._lock:
            if timeout_s and not room.is_enough(enough):
                room.begin_wait(enough)
                self._await_arrival(functools.partial(room.is_enough, enough), timeout_s)
            taken = room.take(max_trajectories, keep_room=keep_room)
            if self._n_awaited_ahead:
                self._wake()
        return None if taken is None else RolloutSlice(*taken)

    def _await_arrival(self, is_enough: Callable[[], bool], timeout_s: float) -> None:
        """Waits for enough trajectories, with the lock held. It is a method so that tests can intervene."""
        self._arrived.wait_for(is_enough, timeout_s)

    def close(self) -> None:
        """Refuses further rollouts, and ends all waits. Queued rollouts can still be taken."""
        with self._lock:
            self._room.close()
            self._wake()
