"""Keeps the part of a rank after rank 0: its share of each checkpoint, and nothing else."""

import math
from concurrent.futures import Future
from pathlib import Path

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.experience.experience import ExperienceSource
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.ranks.ranks import Ranks
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.checkpointing import TrainingCheckpoints
from rollcast.services.errors import NotReadyError


class PartKeeper:
    """The keeper of a rank after rank 0: what `RunKeeper` is for rank 0. The trainer's thread calls it.

    Args:
        run: The run's folder, which is rank 0's.
        algorithm: The algorithm that learns.
        experience: The source of its batches.
        progress: The progress of training.
        ranks: The ranks.
        timeout_s: The seconds that a checkpoint may take before the next begins.
    """

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
        """Does nothing: `begin_agreed` takes them itself."""

    def keep_due(self) -> bool:
        """Returns False: rank 0 says what is due."""
        return False

    def save_policies(self, timeout_s: float) -> None:
        """Waits until the running checkpoint is written: rank 0 writes the policies."""
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
                f"no part of a checkpoint can be begun: waiting {seconds:.0f} s for {what}; expected that to be "
                "written by now; check whether the disk hangs"
            )
        return written
