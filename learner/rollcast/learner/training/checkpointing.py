"""Writes and reads the checkpoints of training."""

import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.checkpoints.manifest import CheckpointInfo, read_as_vouched_for
from rollcast.learner.checkpoints.pace import Pace
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.devices.generators import global_generators_state, restore_global_generators
from rollcast.learner.experience.experience import ExperienceSource
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.history.events import NoteEvent, forget_event
from rollcast.learner.ranks.assignment import part_rank
from rollcast.learner.ranks.parts import part_of
from rollcast.learner.ranks.ranks import ONE_RANK, Ranks
from rollcast.learner.waiting import WaitMonitor
from rollcast.services.errors import ConfigurationError, NotReadyError, RankLostError, RollcastError
from rollcast.services.history.history import EventSeverity
from rollcast.services.version import software_version

logger = logging.getLogger(__name__)

_STATE_FILE: Final = "training.json"
_THREAD: Final = "rollcast-checkpoint"
# The share of its time that the writing thread works, unless another thread waits for it. The rest is the trainer's.
SHARE: Final = 0.05
# The same share if another rank waits for the thread.
_SHARE_OF_PARTS: Final = 0.5
# The interval between reports of a wait for a checkpoint.
_LOOK_S: Final = 1.0


def read_log_state(checkpoint: Path) -> Mapping[str, Any] | None:
    """Returns a checkpoint's state of the run's write-ahead log; None if the run kept no log.

    Args:
        checkpoint: A restored checkpoint, which is known to be complete.
    """
    log_state: Mapping[str, Any] | None = _read_state(checkpoint)["actors"].get("log")
    return log_state


def _read_state(checkpoint: Path) -> Mapping[str, Any]:
    state: Mapping[str, Any] = json.loads((checkpoint / _STATE_FILE).read_text(encoding="utf-8"))
    return state


class RestoredBest(NamedTuple):
    """A checkpoint's information about the best policy.

    Attributes:
        best_return: The highest mean return of training; -inf: none.
        evaluation: The result of `TrainingEvaluation.state`; None if no policy was evaluated.
    """

    best_return: float
    evaluation: Mapping[str, Any] | None


class TrainingCheckpoints:
    """The checkpoints of one run, with the complete state of training.

        algorithm.*      from `Algorithm.save`: networks, targets, optimisers, temperature, generators
        replay/          from `ExperienceSource.begin_save`: the replay buffers
        training.json    counters, returns, cumulative statistics, best return, policy version, last rollout per actor,
                         torch's global generators
        manifest         the run, the moment, and a digest of each file above

    Args:
        store: The folder of the checkpoints.
        algorithm: The algorithm in training.
        experience: The source of its batches.
        progress: The progress of training.
        note: Notes each written checkpoint, and each failure.
        ranks: The ranks of the run. Ranks after rank 0 write only their own buffers, counters and actors, into the
            checkpoint's folder `rankN`.
    """

    def __init__(
        self,
        store: CheckpointStore,
        algorithm: Algorithm,
        experience: ExperienceSource,
        progress: TrainingProgress,
        note: NoteEvent = forget_event,
        *,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self._ranks = ranks
        # Rank 0 waits for the others.
        self._share = SHARE if ranks.is_first else _SHARE_OF_PARTS
        self._note = note
        self._store = store
        self._algorithm = algorithm
        self._experience = experience
        self._progress = progress
        self._lock = threading.Lock()  # guards the six below: the trainer and operators begin checkpoints
        self._written: Future[Path] | None = None
        self._writer: threading.Thread | None = None
        self._pace = Pace(SHARE)
        self._what = ""
        self._began_at = 0.0
        # The last checkpoint that this process wrote or read; the next one links its unchanged files.
        self._previous: Path | None = None

    @property
    def is_writing(self) -> bool:
        """True while a checkpoint is being written."""
        written = self._written
        return written is not None and not written.done()

    @property
    def _device(self) -> torch.device:
        return next(self._algorithm.policy.parameters()).device

    def describe(self) -> tuple[str, float]:
        """Returns a description of the running checkpoint, and its seconds so far. Thread-safe."""
        return f"{self._what} to be written by the thread {_THREAD}", time.monotonic() - self._began_at

    def begin(
        self,
        *,
        best_return: float,
        evaluation: Mapping[str, Any] | None = None,
        statistics: list[dict[str, Any]],
        has_ended: bool,
        then: Callable[[], None] = lambda: None,
    ) -> "Future[Path] | None":
        """Takes a snapshot of the complete state, and writes it in a thread. No update may run during the snapshot.

        Args:
            best_return: The highest mean return so far; -inf: none.
            evaluation: The result of `TrainingEvaluation.state`; None if no policy is evaluated.
            statistics: The result of `EpochStatsAggregator.state`.
            has_ended: True if training has reached its end.
            then: Called in the writing thread after the checkpoint.

        Returns:
            A future for `wait`; a failure is also logged. None if the previous checkpoint is still being written: then
            the call did nothing.

        Raises:
            RollcastError: Training diverged.
            OSError: The folder cannot be written; the previous checkpoint is kept.
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
                # The algorithm, too: moving trajectories changes the running mean and variance of its policy.
                with self._experience.moving:
                    if self._ranks.is_first:
                        self._algorithm.save(staged)
                    # Last, because saving the algorithm is likelier to fail, and the buffers keep copies from now on.
                    actors = self._experience.actors.state()
                    save_experience = self._experience.begin_save()
                state: dict[str, Any] = {
                    "n_ranks": self._ranks.n_ranks,
                    "progress": self._progress.state(),
                    "actors": actors,
                    "best_return": best_return if math.isfinite(best_return) else None,
                    "statistics": statistics,
                    "generators": global_generators_state(self._device),
                }
                if evaluation is not None:
                    state["evaluation"] = dict(evaluation)
                # The actors' values may be numpy scalars.
                text = json.dumps(state, indent=1, default=lambda value: value.item())
            except BaseException as error:
                self._store.abandon(staged, error)
                raise
            written: Future[Path] = Future()
            pace = self._pace = Pace(self._share)

            def write() -> Path:
                # First, in any case: until this call, the buffers keep copies of overwritten rows.
                digests = save_experience(staged, self._previous, pace.rest)
                (staged / _STATE_FILE).write_text(text + "\n", encoding="utf-8")
                self._previous = self._store.commit(staged, info, previous=self._previous, digests=digests)
                self._experience.actors.saved(actors)
                then()
                self._note(EventSeverity.INFO, f"wrote the checkpoint after {info.n_updates} updates: {self._previous}")
                return self._previous

            # A daemon, so that the process can end although the disk hangs; the checkpoint before is kept.
            thread = threading.Thread(
                target=_run, args=(write, written, self._store, staged, info, self._note), name=_THREAD, daemon=True
            )
            self._written, self._writer, self._began_at = written, thread, time.monotonic()
            self._what = f"the checkpoint after {info.n_updates} updates"
            thread.start()
            return written

    def finish(self, timeout_s: float, waiting: WaitMonitor | None = None) -> bool:
        """Waits until no checkpoint is being written. The writing thread does not pause during the wait.

        Args:
            timeout_s: The longest wait, in seconds.
            waiting: The monitor of the waiting thread, which shows the wait; None for no monitor.

        Returns:
            True if no checkpoint is being written now, whether or not the last one succeeded.
        """
        written, deadline = self._written, time.monotonic() + timeout_s
        if written is None:
            return True
        self._pace.end_rests()
        if waiting is None or written.done():
            futures.wait([written], timeout_s)
        else:
            with waiting.waiting_for(self.describe()[0]):
                while (left := deadline - time.monotonic()) > 0 and not written.done():
                    futures.wait([written], min(left, _LOOK_S))
                    waiting.explain(self.describe()[0])
        self._join(written, deadline)
        return written.done()

    def wait(self, written: "Future[Path]", timeout_s: float) -> Path:
        """Waits until a checkpoint is written, and returns its folder. The writing thread does not pause in the wait.

        Args:
            written: The future from `begin`.
            timeout_s: The longest wait, in seconds.

        Raises:
            OSError: The checkpoint cannot be written; the previous one is kept.
            NotReadyError: The checkpoint is not written in time.
        """
        deadline = time.monotonic() + timeout_s
        self._pace.end_rests()
        if futures.wait([written], timeout_s).not_done:
            what, seconds = self.describe()
            raise NotReadyError(
                f"waited {seconds:.0f} s for {what}; expected an end within {timeout_s:g} s; check whether the disk "
                "hangs, or is too slow for the replay buffer; the previous checkpoint is kept"
            )
        self._join(written, deadline)
        return written.result()

    def _join(self, written: "Future[Path]", deadline: float) -> None:
        """Waits for the end of a checkpoint's writing thread.

        The thread holds tensors, and torch aborts the process if a thread frees one while the interpreter ends.
        """
        if (writer := self._writer) is not None and written is self._written and written.done():
            writer.join(max(0.0, deadline - time.monotonic()))

    def restore(self, directory: Path) -> RestoredBest:
        """Restores a checkpoint, and removes later checkpoints. Call it before training starts.

        Args:
            directory: A complete checkpoint from `CheckpointStore.newest`: the folder of all ranks.

        Returns:
            The checkpoint's information about the best policy.

        Raises:
            ConfigurationError: It has another algorithm, environment or network, or invalid contents.
        """
        with read_as_vouched_for(directory):
            restored = self._read(directory)
        self._previous = part_of(directory, self._ranks.rank)
        self._store.remove_after(directory)
        return restored

    def _read(self, directory: Path) -> RestoredBest:
        state = _read_state(directory)
        n_ranks = state.get("n_ranks", 1)
        self._algorithm.load(directory)
        actors = self._experience.actors
        if n_ranks == self._ranks.n_ranks:
            own = part_of(directory, self._ranks.rank)
            state = _read_state(own)
            self._experience.load(own)
            actors.load_state(state["actors"])
        else:
            self._check_redistribution(directory, state, n_ranks)
            parts = [_read_state(part_of(directory, rank)) for rank in range(n_ranks)]
            actors.load_state({**state["actors"], "actors": self._own_actors(parts)})
        actors.get_epoch_stats_aggregator().load_state(state["statistics"])
        self._progress.load_state(state["progress"])
        # Older checkpoints have none: their generators begin again with the run's seed.
        restore_global_generators(self._device, state.get("generators", {}))
        best_return = -math.inf if state["best_return"] is None else float(state["best_return"])
        return RestoredBest(best_return, state.get("evaluation"))

    def _check_redistribution(self, directory: Path, state: Mapping[str, Any], n_ranks: int) -> None:
        """Refuses a checkpoint of another number of ranks if its parts cannot be redistributed."""
        kept = "replay buffers" if self._experience.replay_status() is not None else ""
        if "log" in state["actors"]:
            kept = "log of durable rollouts"
        if kept:
            raise ConfigurationError(
                f"{directory} was written by {n_ranks} rank{'s' if n_ranks > 1 else ''}, each with its own {kept}, "
                f"and this run has {self._ranks.n_ranks}; expected the same number; resume it with {n_ranks}, or "
                "begin another run with its policy (--initial-policy)"
            )

    def _own_actors(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the actors of all parts that belong to this rank now."""
        return {
            name: actor
            for part in parts
            for name, actor in part["actors"].get("actors", {}).items()
            if part_rank(name, self._ranks.n_ranks) == self._ranks.rank
        }


def _run(
    write: Callable[[], Path],
    written: "Future[Path]",
    store: CheckpointStore,
    staged: Path,
    info: CheckpointInfo,
    note: NoteEvent,
) -> None:
    """Writes the slow part, and commits the staged folder. Runs in the writing thread."""
    try:
        written.set_result(write())
    except (OSError, RollcastError) as error:
        what = "the checkpoint after %d updates is not written: %s; the previous one is kept"
        logger.error(what, info.n_updates, error)  # noqa: TRY400  # the message says it all
        note(EventSeverity.ERROR, what % (info.n_updates, error))
        # Another rank may be gone, and with it the connection between the ranks.
        with contextlib.suppress(RankLostError):
            store.abandon(staged, error)
        written.set_exception(error)
    except BaseException as error:
        written.set_exception(error)
        raise
