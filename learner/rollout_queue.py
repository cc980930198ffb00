"""The bounded queue between the threads that receive rollouts and the one that batches them."""

import dataclasses
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from services.rollouts import Rollout, SubstepColumns

# How often a blocked producer checks that its stream is still there.
_CHECK_S = 0.5


@dataclass(frozen=True, slots=True)
class RolloutSlice:
    """Trajectories `start:stop` of a rollout."""

    rollout: Rollout
    start: int
    stop: int

    @property
    def n_trajectories(self) -> int:
        """How many."""
        return self.stop - self.start

    def to_rollout(self) -> Rollout:
        """These trajectories as a rollout of their own; views of the whole."""
        whole, cut = self.rollout, slice(self.start, self.stop)
        if self.n_trajectories == whole.n_envs:
            return whole
        wanted = (whole.final_index[:, 1] >= self.start) & (whole.final_index[:, 1] < self.stop)
        return dataclasses.replace(
            whole,
            substeps={
                key: SubstepColumns(
                    observation={path: array[:, cut] for path, array in columns.observation.items()},
                    action=columns.action[:, cut],
                    log_prob=columns.log_prob[:, cut],
                    last_observation={path: array[cut] for path, array in columns.last_observation.items()},
                    final_observation={path: array[wanted] for path, array in columns.final_observation.items()},
                )
                for key, columns in whole.substeps.items()
            },
            reward=whole.reward[:, cut],
            terminated=whole.terminated[:, cut],
            truncated=whole.truncated[:, cut],
            valid=None if whole.valid is None else whole.valid[:, cut],
            final_index=whole.final_index[wanted] - np.array([0, self.start], np.int32),
            episodes=tuple(
                dataclasses.replace(episode, env_index=episode.env_index - self.start)
                for episode in whole.episodes
                if self.start <= episode.env_index < self.stop
            ),
            env_seeds=whole.env_seeds[cut],
        )


class RolloutQueue:
    """First in, first out, counted in trajectories.

    Invariant: `size <= capacity`, or the queue holds one rollout only (one that is larger than the capacity).

    Any number of threads may `put`; one thread at a time may `get`. `put` blocks while the queue is full: that is the
    back-pressure that reaches the actors. Those that wait are let in in the order in which they came, so that no actor
    is overtaken twice by another of the same speed.

    Args:
        capacity: In trajectories, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._changed = threading.Condition()  # guards everything below
        self._rollouts: deque[Rollout] = deque()
        self._head_offset = 0
        self._size = 0
        self._reserved = 0
        self._closed = False
        self._turns: deque[object] = deque()

    @property
    def size(self) -> int:
        """Trajectories that wait."""
        with self._changed:
            return self._size

    def put(self, rollout: Rollout, *, is_active: Callable[[], bool], from_reserve: bool = False) -> bool:
        """Appends a rollout, waiting while it does not fit.

        Args:
            rollout: What to append.
            is_active: Looked at now and then while waiting; False gives up.
            from_reserve: The rollout uses a reservation made by `reserve`.

        Returns:
            False if the rollout is not in the queue: the queue was closed, or `is_active` became False meanwhile.
        """
        n_trajectories = rollout.n_envs
        with self._changed:
            if from_reserve:
                self._reserved -= n_trajectories
            elif not self._wait_for_turn(n_trajectories, is_active):
                return False
            if self._closed:
                return False
            self._rollouts.append(rollout)
            self._size += n_trajectories
            self._changed.notify_all()
            return True

    def _wait_for_turn(self, n_trajectories: int, is_active: Callable[[], bool]) -> bool:
        """Waits, in the order of arrival, until so many trajectories fit. Called with the lock held."""
        turn = object()
        self._turns.append(turn)
        try:
            while not self._closed and not (self._turns[0] is turn and self._fits(n_trajectories)):
                if not is_active():
                    return False
                self._changed.wait(_CHECK_S)
            return True
        finally:
            self._turns.remove(turn)
            self._changed.notify_all()

    def _fits(self, n_trajectories: int) -> bool:
        return not self._size or self._size + self._reserved + n_trajectories <= self.capacity

    def reserve(self, n_trajectories: int) -> bool:
        """Sets room for a coming rollout aside, if there is any; never waits.

        A rollout that was started on a reservation finds its place free, so the number of trajectories that are queued
        or promised never exceeds the capacity.
        """
        with self._changed:
            if self._size + self._reserved + n_trajectories > self.capacity:
                return False
            self._reserved += n_trajectories
            return True

    def release(self, n_trajectories: int) -> None:
        """Gives a reservation back."""
        with self._changed:
            self._reserved -= n_trajectories
            self._changed.notify_all()

    def get(self, max_trajectories: int, timeout_s: float) -> RolloutSlice | None:
        """Takes up to `max_trajectories` of the oldest rollout; None if there was none for `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._rollouts or self._closed, timeout_s) or not self._rollouts:
                return None
            head = self._rollouts[0]
            start = self._head_offset
            stop = min(head.n_envs, start + max_trajectories)
            if stop == head.n_envs:
                self._rollouts.popleft()
                self._head_offset = 0
            else:
                self._head_offset = stop
            self._size -= stop - start
            self._changed.notify_all()
            return RolloutSlice(head, start, stop)

    def close(self) -> None:
        """Refuses every further rollout, waking those that wait. What is queued can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
