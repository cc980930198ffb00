"""Writes the policies and checkpoints of a run: when they are due, at its end, and at an operator's request."""

import contextlib
import dataclasses
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.experience.experience import ExperienceSource
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.history.events import NoteEvent, forget_event
from rollcast.learner.ranks.ranks import ONE_RANK, Ranks
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.checkpointing import TrainingCheckpoints
from rollcast.learner.training.evaluation import TrainingEvaluation
from rollcast.learner.training.schedule import TrainingSchedule
from rollcast.learner.waiting import WaitLog
from rollcast.services.errors import NotReadyError
from rollcast.services.policies.policies import SavedPolicy

logger = logging.getLogger(__name__)

# The number of episodes between copies of the policy; with 100 episodes in a mean, up to three copies are held.
_EPISODES_PER_COPY = 25
# The shortest time between writes of the best policy: early in training, every episode is a record.
_BEST_POLICY_INTERVAL_S = 2.0
# The time that the trainer, or an operator, waits for the last checkpoint before it begins the next.
_DUE_TIMEOUT_S = 60.0
# The time that the end of training waits for a checkpoint: enough for a replay buffer of 60 GB at 100 MB/s.
WRITE_TIMEOUT_S = 600.0


class BestPolicy:
    """The policy with the highest mean return so far; of equal policies, the last one. Used by the trainer's thread.

    The mean return covers the last N episodes, during which the policy kept changing. A record belongs to the policy at
    the middle of these episodes: half of these episodes ended earlier, half later. The present policy would be wrong,
    because with long episodes it is dozens of updates newer than the policies that earned the return.

    Args:
        progress: Has the number of episodes and their mean return.
        snapshot: Returns a copy of the policy in training.

    Attributes:
        written_return: The mean return of the best policy on the disk; -inf: none. Any thread may read it.
        unwritten: The best policy if it is better than the one on the disk; else None.
    """

    def __init__(self, progress: TrainingProgress, snapshot: Callable[[], SavedPolicy]) -> None:
        self._progress = progress
        self._snapshot = snapshot
        # Episodes that had ended, and the policy then; the oldest first. Only the first is at least N / 2 episodes old.
        self._copies: deque[tuple[int, SavedPolicy]] = deque()
        self._best_return = self.written_return = float("-inf")
        self.unwritten: SavedPolicy | None = None

    def resume(self, best_return: float) -> None:
        """Continues from an earlier process, whose best policy is on the disk.

        Args:
            best_return: Its highest mean return; -inf: none.
        """
        self._best_return = self.written_return = best_return

    def observe(self) -> None:
        """Copies the policy from time to time, and notes a new record. Called after every update."""
        n_episodes = self._progress.episodes
        if not self._copies or n_episodes >= self._copies[-1][0] + _EPISODES_PER_COPY:
            self._copies.append((n_episodes, self._snapshot()))
        half = self._progress.n_return_episodes // 2
        while len(self._copies) > 1 and self._copies[1][0] <= n_episodes - half:
            self._copies.popleft()
        mean_return = self._progress.recent_mean_return()
        if mean_return is not None and mean_return >= self._best_return:
            self._best_return = mean_return
            self.unwritten = dataclasses.replace(self._copies[0][1], mean_return=mean_return)

    def note_written(self) -> None:
        """Records that the best policy was written."""
        self.unwritten, self.written_return = None, self._best_return


class RunKeeper:
    """The keeper of one run's policies and checkpoints. The trainer's thread calls all methods but `save_for_operator`.

    Args:
        run: The run's folder.
        algorithm: The algorithm in training.
        experience: The source of its batches.
        progress: The progress of training.
        schedule: Decides when checkpoints are due.
        evaluation: Chooses the best policy; None: the mean return of training decides.
        note: Notes written checkpoints.
        ranks: The ranks that write each checkpoint together.

    Attributes:
        is_unrecorded: True from the start of a checkpoint until the trainer has written a record of that moment.
    """

    def __init__(
        self,
        run: RunDirectory,
        algorithm: Algorithm,
        experience: ExperienceSource,
        progress: TrainingProgress,
        schedule: TrainingSchedule,
        evaluation: TrainingEvaluation | None = None,
        note: NoteEvent = forget_event,
        *,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self._ranks = ranks
        self._run = run
        self._algorithm = algorithm
        self._actors = experience.actors
        self._moving = experience.moving
        self._progress = progress
        self._schedule = schedule
        store = ranks.store(run.checkpoints_path, keep=schedule.keep_checkpoints)
        store.tidy()
        self._checkpoints = TrainingCheckpoints(store, algorithm, experience, progress, note=note, ranks=ranks)
        self._evaluation = evaluation
        self._best = BestPolicy(progress, self._policy)
        # A snapshot of the statistics for an operator's checkpoint: the trainer's thread changes the statistics.
        self._statistics: list[dict[str, Any]] = []
        self._left_out = WaitLog()
        self.is_unrecorded = False
        self._next_best = 0.0
        self._next_checkpoint = time.monotonic() + schedule.checkpoint_interval_s

    def resume(self, checkpoint: Path) -> None:
        """Restores a checkpoint of the run. Call it before training starts.

        Raises:
            ConfigurationError: The checkpoint has another algorithm, environment or network.
        """
        restored = self._checkpoints.restore(checkpoint)
        self._best.resume(restored.best_return)
        if self._evaluation is not None and restored.evaluation is not None:
            self._evaluation.load_state(restored.evaluation)
        self.note_statistics()

    def note_statistics(self) -> None:
        """Takes a snapshot of the statistics. Only the trainer's thread, which changes them, may call it."""
        self._statistics = self._actors.get_epoch_stats_aggregator().state()

    def keep_due(self) -> bool:
        """Writes the best policy and a checkpoint, if due; logs an error if the disk is full.

        Returns:
            True if a checkpoint was due.
        """
        now = time.monotonic()
        if self._evaluation is None:
            self._best.observe()
        # Evaluations are rare, so that each best one is written at once.
        if now >= self._next_best or self._evaluation is not None:
            self._next_best = now + _BEST_POLICY_INTERVAL_S
            with _training_goes_on("the best policy"):
                self._save_best_policy()
        if not self._checkpoint_is_due(now):
            return False
        self._next_checkpoint = now + self._schedule.checkpoint_interval_s
        if not self._ranks.begins_checkpoint(is_writing=self._checkpoints.is_writing):
            return False
        with _training_goes_on(f"the checkpoint after {self._algorithm.n_updates} updates"):
            self._save_checkpoint()
        return True

    def save_policies(self, timeout_s: float) -> None:
        """Waits until the running checkpoint is written, then writes the last and the best policy.

        Args:
            timeout_s: The longest wait, in seconds.
        """
        self._checkpoints.finish(timeout_s, self._actors.waiting)
        last = self._policy()
        self._run.write_policy("last", last)
        self._save_best_policy()
        if not self._run.policy_path("best").exists():
            self._run.write_policy("best", last)

    def save_last_checkpoint(self, *, has_ended: bool, timeout_s: float) -> None:
        """Writes the last checkpoint of this process.

        Args:
            has_ended: True if training has reached its end.
            timeout_s: The longest time for the checkpoint, in seconds.

        Raises:
            OSError: The checkpoint cannot be written; the previous one is kept.
            NotReadyError: The checkpoint is not written in time.
        """
        self.note_statistics()
        self._checkpoints.wait(self._begin_or_refuse(has_ended=has_ended), timeout_s)

    def save_for_operator(self, between_updates: Callable[[], AbstractContextManager[None]]) -> tuple[Path, int]:
        """Writes a checkpoint now. Thread-safe.

        Args:
            between_updates: Returns a context in which no update runs.

        Returns:
            The checkpoint's folder, and its policy version.

        Raises:
            OSError: The checkpoint cannot be written; the previous one is kept.
            NotReadyError: This or the previous checkpoint is not written in time.
        """
        self._checkpoints.finish(_DUE_TIMEOUT_S)
        with between_updates(), self._moving:
            written, version = self._begin_or_refuse(), self._actors.policy_version
        return self._checkpoints.wait(written, WRITE_TIMEOUT_S), version

    def begin_agreed(self) -> "Future[Path]":
        """Begins a checkpoint on which all ranks have agreed. Only the trainer's thread may call it.

        Raises:
            OSError: The checkpoint cannot begin.
            NotReadyError: The previous checkpoint is still being written.
        """
        self._checkpoints.finish(_DUE_TIMEOUT_S, self._actors.waiting)
        self.note_statistics()
        return self._begin_or_refuse()

    def _checkpoint_is_due(self, now: float) -> bool:
        every = self._schedule.checkpoint_interval_updates
        if every is not None:
            return self._algorithm.n_updates % every == 0
        return now >= self._next_checkpoint

    def _save_checkpoint(self) -> None:
        """Begins a due checkpoint; skips it while the previous one is still being written."""
        if self._schedule.checkpoint_interval_updates is not None:
            self._checkpoints.finish(_DUE_TIMEOUT_S, self._actors.waiting)
        self.note_statistics()
        if self._begin() is None:
            what, seconds = self._checkpoints.describe()
            self._left_out.note(f"{what}; skipping the one that is due", seconds)

    def _begin_or_refuse(self, *, has_ended: bool = False) -> "Future[Path]":
        written = self._begin(has_ended=has_ended)
        if written is None:
            what, seconds = self._checkpoints.describe()
            raise NotReadyError(
                f"no checkpoint can begin: waited {seconds:.0f} s for {what}; expected its end by now; "
                "check whether the disk hangs, and try again"
            )
        return written

    def _begin(self, *, has_ended: bool = False) -> "Future[Path] | None":
        written = self._checkpoints.begin(
            best_return=self._best.written_return,
            evaluation=None if self._evaluation is None else self._evaluation.state(),
            statistics=self._statistics,
            has_ended=has_ended,
            then=functools.partial(self._run.write_policy, "last", self._policy()),
        )
        if written is not None:
            self.is_unrecorded = True
        return written

    def _save_best_policy(self) -> None:
        best = self._best if self._evaluation is None else self._evaluation
        if best.unwritten is not None:
            self._run.write_policy("best", best.unwritten)
            best.note_written()

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
    """Logs an error if a file cannot be written because the disk is full. The next due time tries again."""
    try:
        yield
    except OSError as error:
        message = "%s is not written: %s; the previous one is kept, and training continues"
        logger.error(message, what, error)  # noqa: TRY400  # the message says it all
