"""Takes rollouts for the trainer's batches, in the trainer's thread or ahead of it, and drops stale rollouts."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

from rollcast.learner.batching.ahead import AheadAssembler
from rollcast.learner.batching.assembly import AssembledBatch, Assembly
from rollcast.learner.queueing.arrivals import Arrivals
from rollcast.learner.queueing.queue import RolloutQueue, RolloutSlice
from rollcast.learner.queueing.stale_trajectories import StaleTrajectories
from rollcast.learner.waiting import WaitMonitor
from rollcast.services.errors import CollectTimeoutError, NotReadyError
from rollcast.services.rollouts.rollouts import Rollout

# The interval at which the waiting trainer checks its actors.
LOOK_S: Final = 0.25


class RolloutCollector:
    """Takes rollouts for the trainer. Another thread may assemble them while the trainer updates.

    The trainer's thread calls every method except `policy_lag` and `drops`, which any thread may call.

    Args:
        queue: The queued rollouts.
        arrivals: Queued and recovered rollouts, in the order in which the trainer takes them.
        stale: Decides which rollouts are stale, and counts them.
        policy_version: Returns the newest published version.
        keeps_newer: True: rollouts by versions above the newest are not stale. They come from an earlier learner.
        note_taken: Called with every taken rollout.
        note_dropped: Called with every taken rollout that is stale.
    """

    def __init__(
        self,
        queue: RolloutQueue,
        arrivals: Arrivals,
        stale: StaleTrajectories,
        *,
        policy_version: Callable[[], int],
        keeps_newer: bool,
        note_taken: Callable[[Rollout], None],
        note_dropped: Callable[[RolloutSlice], None],
    ) -> None:
        self._queue = queue
        self._arrivals = arrivals
        self._stale = stale
        self._policy_version = policy_version
        self._keeps_newer = keeps_newer
        self._note_taken = note_taken
        self._note_dropped = note_dropped
        self._ahead: AheadAssembler | None = None

    def get(self, max_trajectories: int, timeout_s: float, *, enough: int = 1) -> RolloutSlice | None:
        """Takes trajectories in the trainer's turn; see `Arrivals.get`. Returns None for stale trajectories, too."""
        piece = self._arrivals.get(max_trajectories, timeout_s, enough=enough)
        if piece is None:
            return None
        is_stale = self._is_stale(piece)
        self._note(piece, is_stale)
        return None if is_stale else piece

    def wait(
        self,
        max_trajectories: int,
        *,
        enough: int,
        timeout_s: float,
        wait_until: float,
        waiting: WaitMonitor,
        look_after: Callable[[], None],
        explain: Callable[[], str],
        is_played: Callable[[float], bool],
    ) -> RolloutSlice:
        """Waits for trajectories in the trainer's turn.

        Args:
            max_trajectories: The most trajectories to take.
            enough: See `RolloutQueue.get`.
            timeout_s: The seconds to wait while no rollout is being played.
            wait_until: See `DistributedActors.wait_until`.
            waiting: Called with the subject of the trainer's wait.
            look_after: Checks the actors; called repeatedly. An exception ends the wait.
            explain: Returns which actors the trainer waits for.
            is_played: Returns whether an actor has been playing a rollout since a time.

        Raises:
            CollectTimeoutError: No trajectories arrived within `timeout_s`, and no actor was playing a rollout.
            NotReadyError: No trajectories arrived before `wait_until`.
        """
        began = time.monotonic()
        deadline, explain_at = began + timeout_s, began + LOOK_S
        with waiting.waiting_for("rollouts"):
            while True:
                look_after()
                look_s = max(0.0, min(LOOK_S, wait_until - time.monotonic()))
                piece = self.get(max_trajectories, look_s, enough=enough)
                if piece is not None:
                    return piece
                if time.monotonic() >= wait_until:
                    raise NotReadyError("no rollout has arrived yet; ask again later")
                if time.monotonic() < explain_at:
                    # A stale rollout arrived: checking all actors again would cost more than the rollout.
                    continue
                explain_at = time.monotonic() + LOOK_S
                reason = explain()
                waiting.explain(reason)
                if is_played(began):
                    deadline = time.monotonic() + timeout_s
                elif time.monotonic() > deadline:
                    seconds = time.monotonic() - began
                    raise CollectTimeoutError(f"no rollout for {seconds:.0f} s: the learner waits for {reason}")

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """The trainer's turn: no rollouts are taken ahead during it. Turns may nest."""
        return contextlib.nullcontext() if self._ahead is None else self._ahead.visit()

    def assemble_ahead(self, assembly: Assembly, batch_size: int) -> None:
        """Starts to assemble batches while the trainer is away, from the end of its next turn on."""
        self._ahead = AheadAssembler(
            self._arrivals,
            self._queue,
            assembly,
            batch_size=batch_size,
            is_stale=self._is_stale,
            note_taken=self._note,
        )

    def take_ahead(self) -> AssembledBatch | None:
        """Takes over the assembled trajectories; see `AheadAssembler.take`."""
        return None if self._ahead is None else self._ahead.take()

    def end(self) -> None:
        """Stops assembling ahead."""
        if self._ahead is not None:
            self._ahead.end()
            self._ahead = None

    def drops(self, rollout: Rollout, n_trajectories: int) -> bool:
        """Counts the trajectories of a stale rollout, and returns whether the rollout is stale."""
        return self._stale.drops(n_trajectories, policy_lag=self._policy_lag(rollout), is_first=rollout.sequence == 1)

    def _is_stale(self, piece: RolloutSlice) -> bool:
        return self._stale.is_stale(self._policy_lag(piece.rollout))

    def _note(self, piece: RolloutSlice, is_stale: bool) -> None:
        self._note_taken(piece.rollout)
        if is_stale:
            rollout = piece.rollout
            self._stale.drop(piece.n_trajectories, policy_lag=self._policy_lag(rollout), is_first=rollout.sequence == 1)
            self._note_dropped(piece)

    def _policy_lag(self, rollout: Rollout) -> int:
        policy_lag = self._policy_version() - rollout.policy_version
        return max(0, policy_lag) if self._keeps_newer else policy_lag
