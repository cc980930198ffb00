"""What a run keeps on the disk: policies and checkpoints, when they are due, at the end, and when an operator asks."""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.experience.experience import ExperienceSource
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.best_policy import BestPolicy
from rollcast.learner.training.checkpointing import TrainingCheckpoints
from rollcast.learner.training.schedule import TrainingSchedule
from rollcast.learner.wait_log import WaitLog
from rollcast.services.errors import NotReadyError
from rollcast.services.policies.policies import SavedPolicy

logger = logging.getLogger(__name__)

# The best policy is written at most this often: early in training every episode is a record.
_BEST_POLICY_INTERVAL_S = 2.0
# How long the trainer waits for the checkpoint before, when the number of updates asks for the next; and an operator.
_DUE_TIMEOUT_S = 60.0
# How long the end of training waits for a checkpoint: a replay buffer of 60 GB at 100 MB/s.
WRITE_TIMEOUT_S = 600.0


class RunKeeper:
    """Writes the policies and checkpoints of one run. Called by the trainer's thread, but for `save_for_operator`.

    Args:
        run: Where they are kept.
        algorithm: What learns.
        experience: Where its batches come from.
        progress: How far it is.
        schedule: When checkpoints are due.
    """

    def __init__(
        self,
        run: RunDirectory,
        algorithm: Algorithm,
        experience: ExperienceSource,
        progress: TrainingProgress,
        schedule: TrainingSchedule,
    ) -> None:
        self._run = run
        self._algorithm = algorithm
        self._actors = experience.actors
        self._progress = progress
        self._schedule = schedule
        store = CheckpointStore(run.checkpoints_path, keep=schedule.keep_checkpoints)
        store.tidy()
        self._checkpoints = TrainingCheckpoints(store, algorithm, experience, progress)
        self._best = BestPolicy(progress, self._policy)
        # What of the statistics a checkpoint keeps that an operator asks for, while the trainer's thread adds to them.
        self._statistics: list[dict[str, Any]] = []
        self._left_out = WaitLog()
        self._next_best = 0.0
        self._next_checkpoint = time.monotonic() + schedule.checkpoint_interval_s

    def resume(self, checkpoint: Path) -> None:
        """Goes back to a checkpoint of the run, before training starts.

        Raises:
            ConfigurationError: If it is of another algorithm, environment or network.
        """
        self._best.resume(self._checkpoints.restore(checkpoint))
        self.note_statistics()

    def note_statistics(self) -> None:
        """Takes note of the statistics as they are now; called when nobody adds to them."""
        self._statistics = self._actors.get_epoch_stats_aggregator().state()

    def keep_due(self) -> bool:
        """Writes what is due, and goes on when the disk is full: the best policy, a checkpoint.

        Returns:
            Whether a checkpoint was due.
        """
        now = time.monotonic()
        self._best.observe()
        if now >= self._next_best:
            self._next_best = now + _BEST_POLICY_INTERVAL_S
            with _training_goes_on("the best policy"):
                self._save_best_policy()
        if not self._checkpoint_is_due(now):
            return False
        self._next_checkpoint = now + self._schedule.checkpoint_interval_s
        with _training_goes_on(f"the checkpoint after {self._algorithm.n_updates} updates"):
            self._save_checkpoint()
        return True

    def save_policies(self, timeout_s: float) -> None:
        """Writes the last policy, and the best, when nothing else is being written any more.

        Args:
            timeout_s: How long, in seconds, to wait for that.
        """
        self._checkpoints.finish(timeout_s, self._actors.waiting)
        last = self._policy()
        self._run.write_policy("last", last)
        self._save_best_policy()
        if not self._run.policy_path("best").exists():
            self._run.write_policy("best", last)

    def save_last_checkpoint(self, *, has_ended: bool, timeout_s: float) -> None:
        """Writes the checkpoint with which a process ends.

        Args:
            has_ended: Whether training has reached its end.
            timeout_s: How long, in seconds, it may take.

        Raises:
            OSError: If it cannot be written; the one before is there.
            NotReadyError: If it is not written in time.
        """
        self.note_statistics()
        self._checkpoints.wait(self._begin_or_refuse(has_ended=has_ended), timeout_s)

    def save_for_operator(self, between_updates: Callable[[], AbstractContextManager[None]]) -> tuple[Path, int]:
        """Writes a checkpoint now. Any thread may ask.

        Args:
            between_updates: Inside what it returns no update runs.

        Returns:
            Where the checkpoint is, and its policy version.

        Raises:
            OSError: If it cannot be written; the one before is there.
            NotReadyError: If it, or the one before, is not written in time.
        """
        self._checkpoints.finish(_DUE_TIMEOUT_S)
        with between_updates():
            written, version = self._begin_or_refuse(), self._actors.policy_version
        return self._checkpoints.wait(written, WRITE_TIMEOUT_S), version

    def _checkpoint_is_due(self, now: float) -> bool:
        every = self._schedule.checkpoint_interval_updates
        if every is not None:
            return self._algorithm.n_updates % every == 0
        return now >= self._next_checkpoint

    def _save_checkpoint(self) -> None:
        """Begins the one that is due; left out while the one before is still being written."""
        if self._schedule.checkpoint_interval_updates is not None:
            self._checkpoints.finish(_DUE_TIMEOUT_S, self._actors.waiting)
        self.note_statistics()
        if self._begin() is None:
            what, seconds = self._checkpoints.describe()
            self._left_out.note(f"{what}; the one that is due is left out", seconds)

    def _begin_or_refuse(self, *, has_ended: bool = False) -> "Future[Path]":
        written = self._begin(has_ended=has_ended)
        if written is None:
            what, seconds = self._checkpoints.describe()
            raise NotReadyError(
                f"no checkpoint can be begun: waiting {seconds:.0f} s for {what}; expected that to be there by now; "
                "look whether the disk hangs, and ask again"
            )
        return written

    def _begin(self, *, has_ended: bool = False) -> "Future[Path] | None":
        return self._checkpoints.begin(
            best_return=self._best.written_return,
            statistics=self._statistics,
            has_ended=has_ended,
            then=functools.partial(self._run.write_policy, "last", self._policy()),
        )

    def _save_best_policy(self) -> None:
        if self._best.unwritten is not None:
            self._run.write_policy("best", self._best.unwritten)
            self._best.note_written()

    def _policy(self) -> SavedPolicy:
        now = self._progress.snapshot()
        return SavedPolicy(
            spec=self._algorithm.policy.spec,
            state=self._algorithm.policy_state(),
            policy_version=self._actors.policy_version,
            env_steps=now.env_steps,
            mean_return=now.mean_return,
            spaces=self._algorithm.policy.spaces,
        )


@contextlib.contextmanager
def _training_goes_on(what: str) -> Iterator[None]:
    """What cannot be written, because the disk is full, is an error in the log; it is written when it is due again."""
    try:
        yield
    except OSError as error:
        message = "%s is not written: %s; the one before is kept, and training goes on"
        logger.error(message, what, error)  # noqa: TRY400  # the message says it all
