"""The training loop."""

import contextlib
import dataclasses
import functools
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from actor.statistics.events import EpisodeEvents
from learner.algorithms.algorithm import Algorithm, Metrics
from learner.checkpoints.store import CheckpointStore
from learner.checkpoints.training import TrainingCheckpoints
from learner.control import TrainingControl
from learner.experience import ExperienceSource
from learner.progress import TrainingProgress
from learner.run_directory import PolicyName, RunDirectory, SavedPolicy
from learner.training_events import TrainingEvents
from learner.wait_log import WaitLog
from learner.writers import MetricsWriter, write_all
from services.errors import CollectInterruptedError, NotReadyError
from services.status import Phase

logger = logging.getLogger(__name__)

# The best policy is written at most this often: early in training every episode is a record.
_BEST_POLICY_INTERVAL_S = 2.0
# How long the trainer waits for the checkpoint before, when the number of updates asks for the next; and an operator.
_DUE_TIMEOUT_S = 60.0
# How long the end of training waits for a checkpoint: a replay buffer of 60 GB at 100 MB/s.
_WRITE_TIMEOUT_S = 600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary:
    """How training went; what `--summary-json` writes."""

    env_steps: int
    seconds: float
    env_steps_per_second: float
    updates: int
    mean_return: float | None
    solved: bool
    policy_version: int
    policy_lag_mean: float
    policy_lag_max: int

    def write_json(self, path: Path) -> None:
        """Writes the summary to a file."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When to do what.

    Attributes:
        total_steps: Environment steps, those of every agent, after which training ends.
        stop_return: Mean return at which training ends; None: at none.
        updates_per_broadcast: Updates between two policies that are cast; None: the experience source casts them.
        log_interval_s: Seconds between two records of metrics.
        checkpoint_interval_s: Seconds between two checkpoints.
        checkpoint_interval_updates: Updates between two checkpoints, instead; None: it is the seconds that count.
        keep_checkpoints: How many of the last checkpoints are kept, besides the best.
    """

    total_steps: int
    stop_return: float | None
    updates_per_broadcast: int | None = 1
    log_interval_s: float = 2.0
    checkpoint_interval_s: float = 300.0
    checkpoint_interval_updates: int | None = None
    keep_checkpoints: int = 3


class Trainer:
    """Collects, updates, broadcasts, until there is a reason to stop. Everything else looks on.

    Args:
        experience: Where batches come from; its actors are started and stopped by `run`.
        algorithm: What learns.
        control: Who may steer.
        schedule: When to do what.
        device: Where batches are wanted.
        run: Where policies and checkpoints are kept; None: nowhere.
        writers: Where metrics go; closed by whoever opened them.
    """

    def __init__(
        self,
        experience: ExperienceSource,
        algorithm: Algorithm,
        control: TrainingControl,
        schedule: Schedule,
        *,
        device: torch.device,
        run: RunDirectory | None = None,
        writers: Sequence[MetricsWriter] = (),
    ) -> None:
        self._experience = experience
        self._actors = experience.actors
        self._algorithm = algorithm
        self._control = control
        self._schedule = schedule
        self._device = str(device)
        self._run = run
        self._writers = writers
        self._progress = TrainingProgress()
        self._solved = self._has_ended = False
        self._best_return = float("-inf")
        self._statistics: Mapping[str, float] = {}
        # What of the statistics a checkpoint keeps that an operator asks for, while the trainer's thread adds to them.
        self._recorded_statistics: list[dict[str, Any]] = []
        self._checkpoints = None
        if run is not None:
            store = CheckpointStore(run.checkpoints_path, keep=schedule.keep_checkpoints)
            store.tidy()
            self._checkpoints = TrainingCheckpoints(store, algorithm, experience, self._progress)
        self._events = self._actors.get_epoch_stats_aggregator().events(TrainingEvents)
        self._left_out = WaitLog()
        self._next_log = self._next_best = 0.0
        self._next_checkpoint = time.monotonic() + schedule.checkpoint_interval_s
        control.attach(experience, self._progress, self._save_for_operator if run is not None else None)

    def resume(self, checkpoint: Path) -> None:
        """Goes on from a checkpoint of the run; called before `run`.

        Raises:
            ConfigurationError: If it is of another algorithm, environment or network.
        """
        assert self._checkpoints is not None, "a run without a directory has no checkpoints"
        self._best_return = self._checkpoints.restore(checkpoint)
        self._recorded_statistics = self._actors.get_epoch_stats_aggregator().state()

    def run(self) -> TrainingSummary:
        """Trains until solved, out of steps, or told to stop; saves the policy, stops the actors.

        Raises:
            CollectTimeoutError: No rollouts came.
            ActorFailedError: The actors cannot go on.
            RollcastError: Training diverged.
        """
        if self.is_done():
            # of a run that is resumed after its end: nobody is to be started for it
            self._control.enter(Phase.FINISHED)
            return self._summary()
        source, algorithm, control, progress = self._experience, self._algorithm, self._control, self._progress
        schedule = self._schedule
        try:
            with source:
                control.enter(Phase.TRAINING)
                while not self.is_done():
                    fraction = min(1.0, progress.env_steps / schedule.total_steps)
                    experience = source.next(self._device, progress=fraction)
                    began = time.perf_counter()
                    with control.update_turn():
                        metrics = algorithm.update(experience.batch, progress=fraction)
                        source.learnt(experience.batch, algorithm.priorities)
                        progress.record(experience)
                        every = schedule.updates_per_broadcast
                        if every is not None and algorithm.n_updates % every == 0:
                            self._actors.broadcast_updated_policy(algorithm.policy_state())
                    self._events.learner_update(seconds=time.perf_counter() - began, waited_s=experience.waited_s)
                    self._actors.get_epoch_stats_aggregator().end_episode()
                    self._keep(metrics)
                control.enter(Phase.STOPPING)
        except CollectInterruptedError:
            logger.info("training was stopped")
        finally:
            control.enter(Phase.STOPPING)
            if self._checkpoints is not None:
                self._checkpoints.finish(_WRITE_TIMEOUT_S, self._actors.waiting)
            self._save_policy("last")
            self._save_policy_if_best()
        # Between two checkpoints that the number of updates asks for, another one would change what follows.
        if self._checkpoints is not None and (schedule.checkpoint_interval_updates is None or self._has_ended):
            self._save_last_checkpoint()
        control.enter(Phase.FINISHED)
        return self._summary()

    def statistics(self) -> Mapping[str, float]:
        """What the actors' own events came to in the last record, by `"event/name[group]"`; any thread may ask."""
        return self._statistics

    def is_done(self) -> bool:
        """Whether there is a reason to stop: the steps, the return, or somebody's wish."""
        mean_return, target = self._progress.recent_mean_return(), self._schedule.stop_return
        self._solved = mean_return is not None and target is not None and mean_return >= target
        self._has_ended = self._solved or self._progress.env_steps >= self._schedule.total_steps
        return self._has_ended or self._control.stop_requested

    def _keep(self, metrics: Metrics) -> None:
        """Writes what is due: metrics, the best policy, a checkpoint."""
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + self._schedule.log_interval_s
            self._write_metrics(metrics)
        if now >= self._next_best:
            self._next_best = now + _BEST_POLICY_INTERVAL_S
            with _training_goes_on("the best policy"):
                self._save_policy_if_best()
        if self._run is not None and self._checkpoint_is_due(now):
            self._next_checkpoint = now + self._schedule.checkpoint_interval_s
            with _training_goes_on(f"the checkpoint after {self._algorithm.n_updates} updates"):
                self._save_checkpoint()
            if self._schedule.checkpoint_interval_updates is not None:
                # by time, it would differ from run to run
                self._experience.renew()

    def _checkpoint_is_due(self, now: float) -> bool:
        every = self._schedule.checkpoint_interval_updates
        if every is not None:
            return self._algorithm.n_updates % every == 0
        return now >= self._next_checkpoint

    def _write_metrics(self, metrics: Metrics) -> None:
        now = self._progress.snapshot()
        values = {
            "train/mean_return": now.mean_return if now.mean_return is not None else float("nan"),
            "train/episodes": now.episodes,
            "train/updates": now.updates,
            "train/policy_version": self._actors.policy_version,
            "speed/env_steps_per_second": now.env_steps_per_second,
            "speed/updates_per_second": now.updates_per_second,
            "speed/waiting_fraction": now.waiting_fraction,
            "queue/size": self._actors.queue_size,
            "queue/policy_lag_mean": now.policy_lag_mean,
            "queue/policy_lag_max": now.policy_lag_max,
            "queue/stale_trajectories": self._actors.stale_trajectories,
            "queue/duplicate_rollouts": self._actors.duplicate_rollouts,
            "queue/rejected_rollouts": self._actors.rejected_rollouts,
            "actors/alive": self._actors.n_actors_alive,
        }
        aggregator = self._actors.get_epoch_stats_aggregator()
        statistics = aggregator.epoch_stats()
        # an epoch in which no episode has ended leaves those of the one before
        if "episode_count/epoch" in statistics:
            self._statistics = aggregator.epoch_stats(without=(EpisodeEvents, TrainingEvents))
        losses = {f"{self._control.algorithm}/{name}": float(value) for name, value in metrics.items()}
        write_all(
            self._writers,
            now.env_steps,
            statistics | values | self._actors.metrics() | self._experience.metrics() | losses,
        )
        # A record ends an epoch: the next one tells of its own episodes.
        aggregator.reset_epoch()
        self._recorded_statistics = aggregator.state()

    def _save_policy(self, name: PolicyName) -> None:
        if self._run is None:
            return
        self._run.write_policy(name, self._saved_policy())
        if name == "last" and not self._run.policy_path("best").exists():
            self._save_policy("best")

    def _saved_policy(self) -> SavedPolicy:
        now = self._progress.snapshot()
        return SavedPolicy(
            spec=self._algorithm.policy.spec,
            state=self._algorithm.policy_state(),
            policy_version=self._actors.policy_version,
            env_steps=now.env_steps,
            mean_return=now.mean_return,
        )

    def _save_policy_if_best(self) -> None:
        mean_return = self._progress.recent_mean_return()
        if mean_return is not None and mean_return > self._best_return:
            self._save_policy("best")
            self._best_return = mean_return

    def _save_checkpoint(self) -> None:
        """Begins the one that is due; left out while the one before is still being written."""
        assert self._checkpoints is not None, "a run without a directory has no checkpoints"
        if self._schedule.checkpoint_interval_updates is not None:
            self._checkpoints.finish(_DUE_TIMEOUT_S, self._actors.waiting)
        self._recorded_statistics = self._actors.get_epoch_stats_aggregator().state()
        if self._begin_checkpoint() is None:
            what, seconds = self._checkpoints.describe()
            self._left_out.note(f"{what}; the one that is due is left out", seconds)

    def _save_last_checkpoint(self) -> None:
        assert self._checkpoints is not None, "likewise"
        self._recorded_statistics = self._actors.get_epoch_stats_aggregator().state()
        self._checkpoints.wait(self._begin_or_refuse(), _WRITE_TIMEOUT_S)

    def _save_for_operator(self, between_updates: Callable[[], AbstractContextManager[None]]) -> tuple[Path, int]:
        assert self._checkpoints is not None, "likewise"
        self._checkpoints.finish(_DUE_TIMEOUT_S)
        with between_updates():
            written, version = self._begin_or_refuse(), self._actors.policy_version
        return self._checkpoints.wait(written, _WRITE_TIMEOUT_S), version

    def _begin_or_refuse(self) -> "Future[Path]":
        assert self._checkpoints is not None, "likewise"
        written = self._begin_checkpoint()
        if written is None:
            what, seconds = self._checkpoints.describe()
            raise NotReadyError(
                f"no checkpoint can be begun: waiting {seconds:.0f} s for {what}; expected that to be there by now; "
                "look whether the disk hangs, and ask again"
            )
        return written

    def _begin_checkpoint(self) -> "Future[Path] | None":
        assert self._checkpoints is not None, "likewise"
        assert self._run is not None, "likewise"
        return self._checkpoints.begin(
            best_return=self._best_return,
            statistics=self._recorded_statistics,
            has_ended=self._has_ended,
            then=functools.partial(self._run.write_policy, "last", self._saved_policy()),
        )

    def _summary(self) -> TrainingSummary:
        now = self._progress.snapshot()
        return TrainingSummary(
            env_steps=now.env_steps,
            seconds=now.seconds,
            env_steps_per_second=now.env_steps / now.seconds,
            updates=now.updates,
            mean_return=now.mean_return,
            solved=self._solved,
            policy_version=self._actors.policy_version,
            policy_lag_mean=now.policy_lag_mean,
            policy_lag_max=now.policy_lag_max,
        )


@contextlib.contextmanager
def _training_goes_on(what: str) -> Iterator[None]:
    """What cannot be written, because the disk is full, is an error in the log; it is written when it is due again."""
    try:
        yield
    except OSError as error:
        message = "%s is not written: %s; the one before is kept, and training goes on"
        logger.error(message, what, error)  # noqa: TRY400  # the message says it all
