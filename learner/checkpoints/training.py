"""What a checkpoint of training holds, written and read back."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from learner.algorithms.algorithm import Algorithm
from learner.checkpoints.manifest import CheckpointInfo
from learner.checkpoints.store import CheckpointStore
from learner.experience import ExperienceSource
from learner.progress import TrainingProgress
from services.version import software_version

_STATE_FILE: Final = "training.json"


class TrainingCheckpoints:
    """Writes everything that training depends on, and brings it back.

        algorithm.*      what `Algorithm.save` writes: networks, targets, optimisers, temperature, generators
        replay/          what `ExperienceSource.save` writes, for replay buffers
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

    def write(self, *, best_return: float, statistics: list[dict[str, Any]], has_ended: bool) -> Path:
        """Writes a checkpoint, while no update runs.

        Args:
            best_return: The highest mean return so far; -inf: there was none.
            statistics: `EpochStatsAggregator.state`.
            has_ended: Whether training has reached its end.

        Returns:
            Where it is.

        Raises:
            RollcastError: If training diverged.
            OSError: If it cannot be written; the one before is there.
        """
        state = {
            "progress": self._progress.state(),
            "actors": self._experience.actors.state(),
            "best_return": best_return if math.isfinite(best_return) else None,
            "statistics": statistics,
        }

        def write_files(directory: Path) -> None:
            self._algorithm.save(directory)
            self._experience.save(directory)
            # values of actors may be numpy's
            text = json.dumps(state, indent=1, default=lambda value: value.item())
            (directory / _STATE_FILE).write_text(text + "\n", encoding="utf-8")

        info = CheckpointInfo(
            n_updates=self._algorithm.n_updates,
            env_steps=self._progress.env_steps,
            policy_version=self._experience.actors.policy_version,
            mean_return=self._progress.recent_mean_return(),
            has_ended=has_ended,
            software_version=software_version(),
        )
        return self._store.write(info, write_files)

    def restore(self, directory: Path) -> float:
        """Brings everything back to where it was, before training starts.

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
        return -math.inf if state["best_return"] is None else float(state["best_return"])
