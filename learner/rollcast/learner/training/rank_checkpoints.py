"""Takes the checkpoints of several ranks: each rank's trainer begins its part after the same update."""

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.experience.experience import ExperienceSource
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.ranks.ranks import Ranks
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.checkpointing import TrainingCheckpoints
from rollcast.learner.training.run_keeper import WRITE_TIMEOUT_S, RunKeeper
from rollcast.services.errors import NotReadyError

logger = logging.getLogger(__name__)

# The time that an operator waits until all ranks have reached the next update.
_ROUND_TIMEOUT_S: Final = 55.0


class PartKeeper:
    """The keeper of each rank after rank 0, in place of `RunKeeper`. The trainer's thread calls it.

    Args:
        run: The run's folder, from rank 0.
        algorithm: The algorithm in training.
        experience: The source of its batches.
        progress: The progress of training.
        ranks: The ranks.
        timeout_s: The longest wait for a running checkpoint before the next one begins, in seconds.

    Attributes:
        is_unrecorded: False: only rank 0 writes records.
    """

    is_unrecorded = False

    def __init__(
        self,
        run: RunDirectory,
        algorithm: Algorithm,
        experience: ExperienceSource,
        progress: TrainingProgress,
        ranks: Ranks,
        *,
        timeout_s: float,
    ) -> None:
        self._actors = experience.actors
        self._timeout_s = timeout_s
        self._checkpoints = TrainingCheckpoints(
            ranks.store(run.checkpoints_path, keep=1),
            algorithm,
            experience,
            progress,
            ranks=ranks,
        )

    def resume(self, checkpoint: Path) -> None:
        """Restores this rank's part of a checkpoint; see `RunKeeper.resume`."""
        self._checkpoints.restore(checkpoint)

    def note_statistics(self) -> None:
        """Does nothing: `begin_agreed` takes the statistics itself."""

    def keep_due(self) -> bool:
        """Returns False: rank 0 decides what is due."""
        return False

    def save_policies(self, timeout_s: float) -> None:
        """Only waits until the running checkpoint is written, because rank 0 writes the policies."""
        self._checkpoints.finish(timeout_s, self._actors.waiting)

    def save_last_checkpoint(self, *, has_ended: bool, timeout_s: float) -> None:
        """Writes this rank's part of the last checkpoint; see `RunKeeper.save_last_checkpoint`."""
        self._checkpoints.wait(self._begin(has_ended=has_ended), timeout_s)

    def begin_agreed(self) -> "Future[Path]":
        """Begins this rank's part of a checkpoint; see `RunKeeper.begin_agreed`."""
        self._checkpoints.finish(self._timeout_s, self._actors.waiting)
        return self._begin(has_ended=False)

    def _begin(self, *, has_ended: bool) -> "Future[Path]":
        written = self._checkpoints.begin(
            best_return=-math.inf,
            statistics=self._actors.get_epoch_stats_aggregator().state(),
            has_ended=has_ended,
        )
        if written is None:
            what, seconds = self._checkpoints.describe()
            raise NotReadyError(
                f"no part of a checkpoint can begin: waited {seconds:.0f} s for {what}; expected its end by "
                "now; check whether the disk hangs"
            )
        return written


class AgreedCheckpoints:
    """The checkpoints of one of several ranks. Any thread may call `save`; the trainer's thread calls `take`.

    Args:
        keeper: Writes the checkpoints, or this rank's parts.
        ranks: The ranks.
        actors: The actors, for the newest policy version.
    """

    def __init__(self, keeper: RunKeeper | PartKeeper, ranks: Ranks, actors: DistributedActors) -> None:
        self._keeper = keeper
        self._ranks = ranks
        self._actors = actors
        self._lock = threading.Lock()  # guards the requests
        self._requests: list[Future[tuple[Future[Path], int]]] = []

    def save(self, between_updates: Callable[[], AbstractContextManager[None]]) -> tuple[Path, int]:
        """Asks all ranks for a checkpoint, and waits until it is written; see `SaveCheckpoint`.

        Raises:
            OSError: The checkpoint cannot be written; the previous one is kept.
            NotReadyError: The ranks do not reach their next update in time, or the checkpoint is not written in time.
        """
        del between_updates  # the ranks agree on the moment
        request: Future[tuple[Future[Path], int]] = Future()
        with self._lock:
            self._requests.append(request)
        self._ranks.ask_for_checkpoint()
        try:
            written, version = request.result(_ROUND_TIMEOUT_S)
            return written.result(WRITE_TIMEOUT_S), version
        except FutureTimeoutError as error:
            raise NotReadyError(
                "the checkpoint of all ranks is not written in time; expected every rank to reach its next update, "
                "and a fast enough disk; try again"
            ) from error

    def take(self) -> None:
        """Begins the checkpoint on which the ranks have agreed; logs an error if the disk is full."""
        with self._lock:
            requests, self._requests = self._requests, []
        try:
            written = self._keeper.begin_agreed()
        except (OSError, NotReadyError) as error:
            logger.error("no checkpoint is written: %s; the previous one is kept", error)  # noqa: TRY400  # says it all
            for request in requests:
                request.set_exception(error)
            return
        for request in requests:
            request.set_result((written, self._actors.policy_version))
