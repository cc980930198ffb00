"""Assembles the next batch in its own thread while the trainer learns from the current one."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rollcast.learner.batching.assembly import AssembledBatch, Assembly
from rollcast.learner.queueing.arrivals import Arrivals
from rollcast.learner.queueing.queue import RolloutQueue, RolloutSlice

logger = logging.getLogger(__name__)

# The thread wakes when the queue has this share of a batch: early enough before the last rollout, with few large
# copies.
_SHARE: Final = 4
# The interval at which a wait for rollouts checks its end, in case no thread wakes it.
_LOOK_S: Final = 1.0
# The copy of one rollout takes milliseconds.
_END_S: Final = 10.0


class AheadAssembler:
    """A thread that fills the next batch with arrived rollouts while the trainer updates.

    Invariant: the thread changes only the time at which rollouts are copied. Rollouts keep their room in the queue
    until the trainer returns, so actors get credits as if the rollouts were still queued. Then the rollouts count as
    taken, and stale ones are dropped. Thread and trainer take turns: the trainer waits for the copy of at most one
    rollout. While the trainer waits for rollouts, the trainer takes them itself.

    Args:
        arrivals: The rollouts to assemble.
        queue: The queue of these rollouts.
        assembly: The batches to fill.
        batch_size: B, in trajectories.
        is_stale: Returns whether trajectories are too old now. Any thread may call it.
        note_taken: Notes taken trajectories and whether they were dropped; called by the trainer's thread.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        queue: RolloutQueue,
        assembly: Assembly,
        *,
        batch_size: int,
        is_stale: Callable[[RolloutSlice], bool],
        note_taken: Callable[[RolloutSlice, bool], None],
    ) -> None:
        self._arrivals = arrivals
        self._queue = queue
        self._assembly = assembly
        self._is_stale = is_stale
        self._note_taken = note_taken
        self._chunk = -(-batch_size // _SHARE)
        # Plain flags, which the thread looks at between two rollouts.
        self._is_away = self._has_ended = False
        self._turn = threading.Condition()  # guards everything below, arrivals and assembly
        self._n_visits = 0
        # The rollouts that were taken, and whether they were too old already.
        self._taken: list[tuple[RolloutSlice, bool]] = []
        self._full: AssembledBatch | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rollcast-batches", daemon=True)
        self._thread.start()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """The trainer's turn: takes the turn from the thread, and returns it at the end. Visits may nest."""
        self._is_away = False
        self._queue.end_wait_ahead()
        with self._turn:
            self._n_visits += 1
            try:
                yield
            finally:
                self._n_visits -= 1
                self._is_away = not self._n_visits
                self._turn.notify()

    def take(self) -> AssembledBatch | None:
        """Takes over the assembled trajectories, in the trainer's turn. An unfinished batch stays in the assembly.

        Returns:
            The batch, if full.

        Raises:
            BaseException: The exception that ended the thread.
        """
        if self._error is not None:
            raise self._error
        self._queue.give_room()
        taken, self._taken = self._taken, []
        full, self._full = self._full, None
        fresh, n_expired = [], 0
        for piece, was_stale in taken:
            is_stale = was_stale or self._is_stale(piece)
            self._note_taken(piece, is_stale)
            n_expired += is_stale and not was_stale
            if not is_stale:
                fresh.append(piece)
        if not n_expired:
            return full
        self._assembly.restart()
        for piece in fresh:
            self._assembly.add(piece)
        return None

    def end(self) -> None:
        """Ends the thread, and waits at most 10 s for its end. The assembled trajectories are lost."""
        self._has_ended = True
        self._is_away = False
        self._queue.end_wait_ahead()
        if self._turn.acquire(timeout=_END_S):
            self._turn.notify()
            self._turn.release()
            self._thread.join(_END_S)
        if self._thread.is_alive():
            logger.error(
                "the thread that assembles batches ahead has not ended within %.0f s, and is left running; expected "
                "at most the time to copy one rollout; check whether the device hangs",
                _END_S,
            )

    def _run(self) -> None:
        try:
            while n_wanted := self._wait_for_turn():
                if self._queue.wait_ahead(n_wanted, is_wanted=self._may_go_on, timeout_s=_LOOK_S):
                    with self._turn:
                        self._assemble()
        except BaseException as error:  # noqa: BLE001  # the trainer raises it
            self._error = error

    def _wait_for_turn(self) -> int:
        """Waits until the trainer is away and the next batch is not full.

        Returns:
            The trajectories to wait for; 0 at the end.
        """
        with self._turn:
            self._turn.wait_for(lambda: self._has_ended or (self._is_away and self._full is None))
            return 0 if self._has_ended else min(self._chunk, self._assembly.n_missing)

    def _may_go_on(self) -> bool:
        return self._is_away and not self._has_ended

    def _assemble(self) -> None:
        """Fills the next batch with arrived rollouts until the trainer returns. Called with the turn."""
        while self._may_go_on():
            piece = self._arrivals.get(self._assembly.n_missing, 0.0, keep_room=True)
            if piece is None:
                return
            is_stale = self._is_stale(piece)
            self._taken.append((piece, is_stale))
            if is_stale:
                continue
            self._assembly.add(piece)
            if not self._assembly.n_missing:
                self._full = self._assembly.finish()
                return
