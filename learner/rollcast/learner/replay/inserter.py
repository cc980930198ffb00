"""Inserts rollouts into a replay buffer from the receiving threads, for `replay serve`."""

import logging
import math
import threading
from collections.abc import Callable

from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.learner.replay.substeps import SubstepBuffers
from rollcast.services.errors import InvalidRolloutError, NotReadyError
from rollcast.services.process.waiting import acquire
from rollcast.services.replay.replay import ACTORS
from rollcast.services.rollouts.rollouts import Rollout

logger = logging.getLogger(__name__)


class ReplayInserter:
    """A `RolloutDestination` that inserts into buffers from which only other processes sample. Thread-safe.

    It uses no queue: the thread of a stream inserts by itself, and waits while the limiter blocks insertions. This
    back-pressure reaches the actors.

    Invariant: when `put` returns True, every trajectory of the rollout has been inserted exactly once, or was dropped
    with a log line. This holds even if the rollout arrives again over a new stream while the old stream still waits.
    Threads take turns at each buffer: one thread waits for the limiter, under the name `ACTORS`. Other threads wait for
    their turn.

    Args:
        buffers: Buffers by substep key; other objects may use them, too.
    """

    def __init__(self, buffers: SubstepBuffers) -> None:
        self._buffers = buffers
        self._closed = threading.Event()
        self._turns = {key: threading.Lock() for key in buffers}  # held by the thread that inserts
        # By actor and incarnation: the sequence of its latest rollout, and how many of its trajectories are inserted.
        # Written by the thread that has the turn, which is enough: two rollouts of one actor are here at once only if
        # the actor resent one, and both enter the same buffer.
        self._progress: dict[tuple[str, int], tuple[int, int]] = {}

    def put(self, rollout: Rollout, *, is_active: Callable[[], bool], n_reserved: int = 0) -> bool:
        """See `RolloutDestination.put`."""
        del n_reserved  # a buffer has room for all
        if self._closed.is_set():
            return False

        def is_wanted() -> bool:
            return not self._closed.is_set() and is_active()

        turn = self._turns[rollout.substep_key]
        if not acquire(turn, is_active=is_wanted):
            return False
        try:
            return self._insert(rollout, is_wanted)
        except InvalidRolloutError as error:
            logger.warning("dropped a rollout: %s", error)
            return True
        finally:
            turn.release()

    def reserve(self, n_trajectories: int) -> bool:
        """See `RolloutDestination.reserve`. Always returns True: a buffer makes room."""
        del n_trajectories
        return True

    def release(self, n_trajectories: int) -> None:
        """See `RolloutDestination.release`."""

    def close(self) -> None:
        """See `RolloutDestination.close`."""
        self._closed.set()

    def _insert(self, rollout: Rollout, is_wanted: Callable[[], bool]) -> bool:
        """Inserts slices as large as the limiter allows. The caller has the turn."""
        actor, sequence = (rollout.actor_id, rollout.incarnation), rollout.sequence
        latest, n_in = self._progress.get(actor, (0, 0))
        start = n_in if latest == sequence else 0
        buffer = self._buffers[rollout.substep_key]
        while start < rollout.n_envs:
            stop = min(rollout.n_envs, start + buffer.max_trajectories)
            piece = RolloutSlice(rollout, start, stop).to_rollout()
            try:
                buffer.insert(piece, timeout_s=math.inf, is_active=is_wanted, who=ACTORS)
            except NotReadyError:
                return False
            start = stop
            self._progress[actor] = sequence, start
        return True
