"""What a checkpoint of training holds, written and read back."""

import json
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.checkpoints.manifest import CheckpointInfo, read_as_vouched_for
from rollcast.learner.checkpoints.pace import Pace
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.experience.experience import ExperienceSource, SaveExperience
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.waiting import WaitMonitor
from rollcast.services.errors import NotReadyError, RollcastError
from rollcast.services.version import software_version

logger = logging.getLogger(__name__)

_STATE_FILE: Final = "training.json"
_THREAD: Final = "rollcast-checkpoint"
# Of the time in which one is being written, unless somebody waits for it: what the trainer loses is a part of that.
SHARE: Final = 0.05
# How often whoever waits says so.
_LOOK_S: Final = 1.0


def read_log_state(checkpoint: Path) -> Mapping[str, Any] | None:
    """Returns what a checkpoint has of the run's write-ahead log; None if the run kept none.

    Args:
        checkpoint: A checkpoint that was restored, so that it is known to be whole.
    """
    log_state: Mapping[str, Any] | None = _read_state(checkpoint)["actors"].get("log")
    return log_state


def _read_state(checkpoint: Path) -> Mapping[str, Any]:
    state: Mapping[str, Any] = json.loads((checkpoint / _STATE_FILE).read_text(encoding="utf-8"))
    return state


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
        self._lock = threading.Lock()  # guards the four below: the trainer begins, and operators do
        self._written: Future[Path] | None = None
        self._pace = Pace(SHARE)
        self._what = ""
        self._began_at = 0.0
        # The last one that this process wrote or read: its files serve the next.
        self._previous: Path | None = None

    @property
    def is_writing(self) -> bool:
        """Whether the last one that was begun is not there yet."""
        written = self._written
        return written is not None and not written.done()

    def describe(self) -> tuple[str, float]:
        """Says which one is being written, and for how many seconds, for people; any thread may ask."""
        return f"{self._what} to be written by the thread {_THREAD}", time.monotonic() - self._began_at

    def begin(
        self,
        *,
        best_return: float,
        statistics: list[dict[str, Any]],
        has_ended: bool,
        then: Callable[[], None] = lambda: None,
    ) -> "Future[Path] | None":
        """Takes note of everything, while no update runs; a thread writes it beside training.

        Args:
            best_return: The highest mean return so far; -inf: there was none.
            statistics: `EpochStatsAggregator.state`.
            has_ended: Whether training has reached its end.
            then: Called in that thread when it is written.

        Returns:
            For `wait`; one that cannot be written is logged besides. None: the one before is still being written, and
            nothing has been done.

        Raises:
            RollcastError: If training diverged.
            OSError: If nothing can be written; the one before is there.
        """
        with self._lock:
            if self.is_writing:
                return None
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
                # after what is likeliest to fail, for the buffers keep copies from here on
                with self._experience.moving:
                    actors = self._experience.actors.state()
                    save_experience = self._experience.begin_save()
                state = {
                    "progress": self._progress.state(),
                    "actors": actors,
                    "best_return": best_return if math.isfinite(best_return) else None,
                    "statistics": statistics,
                }
                # values of actors may be numpy's
                text = json.dumps(state, indent=1, default=lambda value: value.item())
            except BaseException:
                shutil.rmtree(staged)
                raise
            written: Future[Path] = Future()
            self._pace = Pace(SHARE)
            arguments = (staged, info, save_experience, text, actors, then, written, self._pace)
            # a daemon: on a disk that hangs, the process ends all the same, and the one before is there
            thread = threading.Thread(target=self._write, args=arguments, name=_THREAD, daemon=True)
            self._written, self._began_at = written, time.monotonic()
            self._what = f"the checkpoint after {info.n_updates} updates"
            thread.start()
            return written

    def finish(self, timeout_s: float, waiting: WaitMonitor | None = None) -> bool:
        """Waits until nothing is being written, whether it could be written or not; until then it does not rest.

        Args:
            timeout_s: How long, in seconds, at most.
            waiting: Of the thread that waits; told for what.

        Returns:
            Whether that is so now.
        """
        written, deadline = self._written, time.monotonic() + timeout_s
        if written is None or written.done():
            return True
        self._pace.hurry()
        if waiting is None:
            return not futures.wait([written], timeout_s).not_done
        with waiting.waiting_for(self.describe()[0]):
            while (left := deadline - time.monotonic()) > 0 and not written.done():
                futures.wait([written], min(left, _LOOK_S))
                waiting.explain(self.describe()[0])
        return written.done()

    def wait(self, written: "Future[Path]", timeout_s: float) -> Path:
        """Waits until one is written, which does not rest until then; returns where it is.

        Args:
            written: From `begin`.
            timeout_s: How long, in seconds, at most.

        Raises:
            OSError: If it cannot be written; the one before is there.
            NotReadyError: If it is not written by then.
        """
        self._pace.hurry()
        if futures.wait([written], timeout_s).not_done:
            what, seconds = self.describe()
            raise NotReadyError(
                f"waited {seconds:.0f} s for {what}; expected an end within {timeout_s:g} s; look whether the disk "
                "hangs, or is too slow for the replay buffer; the checkpoint before is there"
            )
        return written.result()

    def _write(
        self,
        staged: Path,
        info: CheckpointInfo,
        save_experience: SaveExperience,
        text: str,
        actors: Mapping[str, Any],
        then: Callable[[], None],
        written: "Future[Path]",
        pace: Pace,
    ) -> None:
        """Thread: writes what takes long, and makes it a checkpoint."""
        try:
            # first, and whatever happens: until then the buffers keep copies of what is overwritten
            digests = save_experience(staged, self._previous, pace.rest)
            (staged / _STATE_FILE).write_text(text + "\n", encoding="utf-8")
            self._previous = self._store.commit(staged, info, previous=self._previous, digests=digests)
            self._experience.actors.saved(actors)
            then()
            written.set_result(self._previous)
        except (OSError, RollcastError) as error:
            what = "the checkpoint after %d updates is not written: %s; the one before is kept"
            logger.error(what, info.n_updates, error)  # noqa: TRY400  # the message says it all
            shutil.rmtree(staged, ignore_errors=True)
            written.set_exception(error)
        except BaseException as error:
            written.set_exception(error)
            raise

    def restore(self, directory: Path) -> float:
        """Brings everything back to where it was, before training starts; later checkpoints are removed.

        Args:
            directory: A checkpoint that `CheckpointStore.newest` has found whole.

        Returns:
            The highest mean return so far; -inf: there was none.

        Raises:
            ConfigurationError: If it is of another algorithm, environment or network, or holds what no such run writes.
        """
        with read_as_vouched_for(directory):
            best_return = self._read(directory)
        self._previous = directory
        self._store.remove_after(directory)
        return best_return

    def _read(self, directory: Path) -> float:
        """Everything but what comes after a success."""
        state = _read_state(directory)
        self._algorithm.load(directory)
        self._experience.load(directory)
        actors = self._experience.actors
        actors.load_state(state["actors"])
        actors.get_epoch_stats_aggregator().load_state(state["statistics"])
        self._progress.load_state(state["progress"])
        return -math.inf if state["best_return"] is None else float(state["best_return"])
