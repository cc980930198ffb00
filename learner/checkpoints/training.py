"""What a checkpoint of training holds, written and read back."""

import json
import logging
import math
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from learner.algorithms.algorithm import Algorithm
from learner.checkpoints.manifest import CheckpointInfo
from learner.checkpoints.store import CheckpointStore
from learner.experience import ExperienceSource, SaveExperience
from learner.progress import TrainingProgress
from services.errors import RollcastError
from services.version import software_version

logger = logging.getLogger(__name__)

_STATE_FILE: Final = "training.json"


class TrainingCheckpoints:
    """Writes everything that training depends on, and brings it back.

        algorithm.*      what `Algorithm.save` writes: networks, targets, optimisers, temperature, generators
        replay/          what `ExperienceSource.begin_save` writes, for replay buffers
        training.json    counters, returns, cumulative statistics, the best return, policy version, every actor's mark
        manifest         what it is of, and a digest of each of these

    Args:
        store: Where checkpoints are.
        algorithm: What learns.
        experience: Where its batches come from.
        progress: How far it is.
    """

    def __init__(
        self,
        store: CheckpointStore,
        algorithm: Algorithm,
        experience: ExperienceSource,
        progress: TrainingProgress,
    ) -> None:
        self._store = store
        self._algorithm = algorithm
        self._experience = experience
        self._progress = progress
        self._lock = threading.Lock()  # guards the three below: the trainer begins, and operators do
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        # The last one that this process wrote or read: its files serve the next.
        self._previous: Path | None = None

    @property
    def is_writing(self) -> bool:
        """Whether the last one that was begun is not there yet."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def begin(
        self,
        *,
        best_return: float,
        statistics: list[dict[str, Any]],
        has_ended: bool,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes note of everything, while no update runs; a thread writes it beside training.

        Waits until the checkpoint before is written. One that cannot be written is logged, and raised by `wait`.

        Args:
            best_return: The highest mean return so far; -inf: there was none.
            statistics: `EpochStatsAggregator.state`.
            has_ended: Whether training has reached its end.
            then: Called in that thread when it is written.

        Raises:
            RollcastError: If training diverged.
            OSError: If nothing can be written; the one before is there.
        """
        with self._lock:
            if self._thread is not None:
                self._thread.join()
            self._error = None
            state = {
                "progress": self._progress.state(),
                "actors": self._experience.actors.state(),
                "best_return": best_return if math.isfinite(best_return) else None,
                "statistics": statistics,
            }
            info = CheckpointInfo(
                n_updates=self._algorithm.n_updates,
                env_steps=self._progress.env_steps,
                policy_version=self._experience.actors.policy_version,
                mean_return=self._progress.recent_mean_return(),
                has_ended=has_ended,
                software_version=software_version(),
            )
            staged = self._store.stage(info.n_updates)
            try:
                self._algorithm.save(staged)
                # values of actors may be numpy's
                text = json.dumps(state, indent=1, default=lambda value: value.item())
                (staged / _STATE_FILE).write_text(text + "\n", encoding="utf-8")
                save_experience = self._experience.begin_save()
            except BaseException:
                shutil.rmtree(staged)
                raise
            self._thread = threading.Thread(
                target=self._write, args=(staged, info, save_experience, then), name="rollcast-checkpoint"
            )
            self._thread.start()

    def finish(self) -> None:
        """Waits until nothing is being written, whether it could be written or not."""
        with self._lock:
            if self._thread is not None:
                self._thread.join()

    def wait(self) -> Path:
        """Waits until the last one that was begun is written; returns where it is.

        Raises:
            OSError: If it cannot be written; the one before is there.
            NotReadyError: If a replay buffer changed faster than it could be read; likewise.
        """
        with self._lock:
            assert self._thread is not None, "begin() comes first"
            self._thread.join()
            if self._error is not None:
                raise self._error
            assert self._previous is not None, "it has been written"
            return self._previous

    def _write(
        self, staged: Path, info: CheckpointInfo, save_experience: SaveExperience, then: Callable[[], None]
    ) -> None:
        """Thread: writes what takes long, and makes it a checkpoint."""
        try:
            save_experience(staged, self._previous)
            self._previous = self._store.commit(staged, info, previous=self._previous)
            then()
        except (OSError, RollcastError) as error:
            what = "the checkpoint after %d updates is not written: %s; the one before is kept"
            logger.error(what, info.n_updates, error)  # noqa: TRY400  # the message says it all
            shutil.rmtree(staged, ignore_errors=True)
            self._error = error

    def restore(self, directory: Path) -> float:
        """Brings everything back to where it was, before training starts; later checkpoints are removed.

        Args:
            directory: A checkpoint that `CheckpointStore.newest` has found whole.

        Returns:
            The highest mean return so far; -inf: there was none.

        Raises:
            ConfigurationError: If it is of another algorithm, environment or network.
        """
        state: Mapping[str, Any] = json.loads((directory / _STATE_FILE).read_text(encoding="utf-8"))
        self._algorithm.load(directory)
        self._experience.load(directory)
        actors = self._experience.actors
        actors.load_state(state["actors"])
        actors.get_epoch_stats_aggregator().load_state(state["statistics"])
        self._progress.load_state(state["progress"])
        self._previous = directory
        self._store.remove_after(directory)
        return -math.inf if state["best_return"] is None else float(state["best_return"])
