"""The training loop."""

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from rollcast.actor.statistics.events import EpisodeEvents
from rollcast.learner.algorithms.algorithm import Algorithm, Metrics
from rollcast.learner.algorithms.defaults import short_name
from rollcast.learner.experience.experience import ExperienceSource
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.control import TrainingControl
from rollcast.learner.training.events import TrainingEvents
from rollcast.learner.training.run_keeper import WRITE_TIMEOUT_S, RunKeeper
from rollcast.learner.training.schedule import TrainingSchedule
from rollcast.learner.writers import MetricsWriter, write_all
from rollcast.services.errors import CollectInterruptedError
from rollcast.services.status.status import Phase

logger = logging.getLogger(__name__)


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
        schedule: TrainingSchedule,
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
        self._writers = writers
        self._progress = TrainingProgress()
        self._keeper = None if run is None else RunKeeper(run, algorithm, experience, self._progress, schedule)
        self._solved = self._has_ended = False
        self._statistics: Mapping[str, float] = {}
        self._events = self._actors.get_epoch_stats_aggregator().events(TrainingEvents)
        self._next_log = 0.0
        control.attach(experience, self._progress, None if self._keeper is None else self._keeper.save_for_operator)

    def resume(self, checkpoint: Path) -> None:
        """Goes on from a checkpoint of the run; called before `run`.

        Raises:
            ConfigurationError: If it is of another algorithm, environment or network.
        """
        assert self._keeper is not None, "a run without a directory has no checkpoints"
        self._keeper.resume(checkpoint)

    def run(self, serve: Callable[[TrainingSummary], None] | None = None) -> TrainingSummary:
        """Trains until solved, out of steps, or told to stop; saves the policy, stops the actors.

        Args:
            serve: Called when training has reached its end and everything is saved, before the actors are stopped:
                they have been told, and whoever asks is served the last policy until it returns. None: nobody is.

        Raises:
            CollectTimeoutError: No rollouts came.
            ActorFailedError: The actors cannot go on.
            RollcastError: Training diverged.
        """
        control = self._control
        # a run that is resumed after its end
        was_done = self.is_done()
        if was_done and (serve is None or not self._has_ended):
            # nobody is to be started for it
            control.enter(Phase.FINISHED)
            return self._summary()
        is_saved = was_done
        try:
            with self._experience:
                if not was_done:
                    control.enter(Phase.TRAINING)
                    self._train()
                control.enter(Phase.STOPPING)
                if serve is not None and self._has_ended:
                    self._cast_last_policy()
                    self._actors.end_training()
                    if not is_saved:
                        self._save()
                        is_saved = True
                    control.enter(Phase.FINISHED)
                    serve(self._summary())
        except CollectInterruptedError:
            logger.info("training was stopped")
        finally:
            control.enter(Phase.STOPPING)
            # a second Ctrl-C waits for no disk
            if not is_saved and not self._actors.is_in_a_hurry:
                self._save_policies()
        if not is_saved:
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

    def _train(self) -> None:
        """Collects, updates and broadcasts until there is a reason to stop."""
        source, algorithm, progress = self._experience, self._algorithm, self._progress
        while not self.is_done():
            fraction = min(1.0, progress.env_steps / self._schedule.total_steps)
            experience = source.next(self._device, progress=fraction)
            began = time.perf_counter()
            with self._control.update_turn():
                metrics = algorithm.update(experience.batch, progress=fraction)
                source.learnt(experience.batch, algorithm.priorities)
                progress.record(experience)
                every = self._schedule.updates_per_broadcast
                if every is not None and algorithm.n_updates % every == 0:
                    self._actors.broadcast_updated_policy(algorithm.policy_state())
            self._events.learner_update(seconds=time.perf_counter() - began, waited_s=experience.waited_s)
            self._actors.get_epoch_stats_aggregator().end_episode()
            self._keep(metrics)

    def _cast_last_policy(self) -> None:
        """Casts the policy of the last updates, where it has not been."""
        every = self._schedule.updates_per_broadcast
        if every is None or self._algorithm.n_updates % every:
            self._actors.broadcast_updated_policy(self._algorithm.policy_state())

    def _keep(self, metrics: Metrics) -> None:
        """Writes what is due: metrics, the best policy, a checkpoint."""
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + self._schedule.log_interval_s
            self._write_metrics(metrics)
        was_due = self._keeper is not None and self._keeper.keep_due()
        if was_due and self._schedule.checkpoint_interval_updates is not None:
            # by time, it would differ from run to run
            self._experience.renew()

    def _save(self) -> None:
        """Writes everything that a run leaves behind."""
        self._save_policies()
        self._save_last_checkpoint()

    def _save_policies(self) -> None:
        if self._keeper is not None:
            # what comes after the wait has as much time again, so each gets half
            self._keeper.save_policies(self._save_timeout_s() / 2)

    def _save_last_checkpoint(self) -> None:
        # Between two checkpoints that the number of updates asks for, another one would change what follows.
        if self._keeper is not None and (self._schedule.checkpoint_interval_updates is None or self._has_ended):
            self._keeper.save_last_checkpoint(has_ended=self._has_ended, timeout_s=self._save_timeout_s() / 2)

    def _save_timeout_s(self) -> float:
        """How long saving may take: whoever has stopped the run may not wait for long."""
        return 2 * WRITE_TIMEOUT_S if self._has_ended else self._schedule.stop_timeout_s

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
        losses = {f"{short_name(self._control.algorithm)}/{name}": float(value) for name, value in metrics.items()}
        write_all(
            self._writers,
            now.env_steps,
            statistics | values | self._actors.metrics() | self._experience.metrics() | losses,
        )
        # A record ends an epoch: the next one tells of its own episodes.
        aggregator.reset_epoch()
        if self._keeper is not None:
            self._keeper.note_statistics()

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
