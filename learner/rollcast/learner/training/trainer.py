"""Runs the training loop: collects, updates, broadcasts, writes metrics, saves."""

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from rollcast.actor.policies.network_arithmetic import DEFAULT_ARITHMETIC, NetworkArithmetic, networks_compute
from rollcast.actor.statistics.events import EpisodeEvents, define_episode_stats, define_epoch_stats
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.defaults import short_name
from rollcast.learner.batch import Batch
from rollcast.learner.experience.experience import ExperienceSource
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.ranks.ranks import ONE_RANK, Ranks
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.control import SaveCheckpoint, TrainingControl
from rollcast.learner.training.evaluation import TrainingEvaluation
from rollcast.learner.training.rank_checkpoints import AgreedCheckpoints, PartKeeper
from rollcast.learner.training.ranked_experience import RankedExperience
from rollcast.learner.training.run_keeper import WRITE_TIMEOUT_S, RunKeeper
from rollcast.learner.training.schedule import TrainingSchedule
from rollcast.learner.training.summary import EndReason, TrainingSummary, of_progress
from rollcast.learner.training.update_metrics import UpdateMetrics
from rollcast.learner.writers import metric_names
from rollcast.learner.writers.writer import MetricsWriter, write_all
from rollcast.services.errors import (
    ActorFailedError,
    CollectInterruptedError,
    CollectTimeoutError,
    RankLostError,
    RollcastError,
    TrainingEndedError,
)
from rollcast.services.history.history import EventSeverity, LearnerActivity
from rollcast.services.spaces.spaces import EnvironmentSpaces, numeric_leaves
from rollcast.services.status.numbers import decimal
from rollcast.services.status.status import Phase

logger = logging.getLogger(__name__)

# The time limit of running evaluations when training has run out of steps, and the interval between checks of them.
_LAST_EVALUATIONS_S: Final = 60.0
_LOOK_S: Final = 0.05
# The last meeting point of the ranks, because rank 0 may serve their connection.
_END: Final = "the end of all ranks"


class TrainingEvents:
    """The events of training; every update counts as an episode."""

    @define_epoch_stats("mean", input_name="seconds", output_name="mean_s")
    @define_epoch_stats("max", input_name="seconds", output_name="max_s")
    @define_epoch_stats("max", input_name="waited_s", output_name="max_waited_s")
    @define_episode_stats("sum", input_name="seconds", output_name="seconds")
    @define_episode_stats("sum", input_name="waited_s", output_name="waited_s")
    def learner_update(self, seconds: float, waited_s: float) -> None:
        """Reports an update.

        Args:
            seconds: The duration of the update.
            waited_s: The seconds of waiting for its batch.
        """


class Trainer:
    """The training loop of one run, which collects, updates and broadcasts until there is a reason to stop.

    Args:
        experience: The source of batches; `run` starts and stops its actors.
        algorithm: The algorithm in training.
        control: Pauses and stops the loop, and reports its status.
        schedule: Decides when to broadcast, log, save and stop.
        device: The device for batches.
        arithmetic: The arithmetic of networks in updates.
        run: The folder for policies and checkpoints; None: no folder.
        writers: Write the metrics; the caller closes them.
        ranks: The ranks of the run.
    """

    def __init__(
        self,
        experience: ExperienceSource,
        algorithm: Algorithm,
        control: TrainingControl,
        schedule: TrainingSchedule,
        *,
        device: torch.device,
        arithmetic: NetworkArithmetic = DEFAULT_ARITHMETIC,
        run: RunDirectory | None = None,
        writers: Sequence[MetricsWriter] = (),
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self._experience = experience
        self._actors = experience.actors
        self._algorithm = algorithm
        self._control = control
        self._run_history = control.run_history
        self._schedule = schedule
        self._device = str(device)
        self._arithmetic = arithmetic
        self._writers = writers
        self._progress = TrainingProgress()
        self._evaluation = None
        if schedule.evaluation is not None:
            self._evaluation = TrainingEvaluation(
                self._actors,
                self._progress,
                schedule.evaluation,
                algorithm.policy,
                run_history=self._run_history,
                run_dir=None if run is None else run.path,
            )
        self._ranks = ranks
        self._keeper = self._make_keeper(run)
        self._end: EndReason | None = None
        self._statistics: Mapping[str, float] = {}
        self._events = self._actors.get_epoch_stats_aggregator().events(TrainingEvents)
        self._next_log = 0.0
        self._update_metrics = UpdateMetrics()
        # Values of the first batch until a record has them; None before that batch.
        self._of_first_batch: dict[str, float] | None = None
        # True if an update was made since the last record.
        self._is_unwritten = False
        save: SaveCheckpoint | None = self._keeper.save_for_operator if isinstance(self._keeper, RunKeeper) else None
        if ranks.n_ranks > 1:
            assert self._keeper is not None, "several ranks have a folder"
            agreed = AgreedCheckpoints(self._keeper, ranks, self._actors)
            save = agreed.save
            self._experience = RankedExperience(experience, ranks, algorithm, control, agreed)
        control.attach(
            self._experience,
            self._progress,
            save,
            None if self._evaluation is None else self._evaluation.status,
        )

    def _make_keeper(self, run: RunDirectory | None) -> RunKeeper | PartKeeper | None:
        if run is None:
            return None
        parts = (run, self._algorithm, self._experience, self._progress)
        if not self._ranks.is_first:
            return PartKeeper(*parts, self._ranks, timeout_s=self._schedule.stop_timeout_s)
        return RunKeeper(*parts, self._schedule, self._evaluation, note=self._run_history.note, ranks=self._ranks)

    def resume(self, checkpoint: Path) -> None:
        """Continues from a checkpoint of the run. Call it before `run`.

        Raises:
            ConfigurationError: The checkpoint has another algorithm, environment or network.
        """
        assert self._keeper is not None, "a run without a directory has no checkpoints"
        self._keeper.resume(checkpoint)

    def run(self, serve: Callable[[TrainingSummary], None] | None = None) -> TrainingSummary:
        """Trains until the run is solved, out of steps, or stopped; saves the policy and stops the actors.

        Args:
            serve: Called at the end of training, after everything is saved, and before the actors stop. The actors know
                of the end by then, and clients get the last policy until it returns. None: no serving.

        Raises:
            CollectTimeoutError: No rollouts arrived.
            ActorFailedError: The actors cannot continue.
            RollcastError: Training diverged.
        """
        control = self._control
        self.is_done()
        # Rank 0 decides whether the run had ended before the resume.
        end = "" if self._end is None else self._end.name
        end = self._ranks.broadcast_text(end, "rank 0 to resume the run")
        self._end = EndReason[end] if end else None
        was_done = self._end is not None
        if was_done and (serve is None or not self._has_ended):
            # No actors need to start.
            self._ranks.meet(_END)
            control.enter(Phase.FINISHED)
            return self._summary()
        is_saved = was_done
        self._actors.progress = self._fraction()
        try:
            with self._experience, self._waiting_actors():
                if not was_done:
                    control.enter(Phase.TRAINING)
                    self._train_to_the_end()
                if serve is not None and self._has_ended:
                    self._publish_last_policy()
                    self._actors.end_training()
                    if not is_saved:
                        self._save()
                        is_saved = True
                    control.enter(Phase.FINISHED)
                    serve(self._summary())
        except CollectInterruptedError:
            logger.info("training was stopped")
        except RankLostError:
            # The other ranks are ending, too: no agreement is possible any more, and the previous checkpoint counts.
            is_saved = True
            raise
        except (ActorFailedError, CollectTimeoutError):
            # The weights are those from before the failure: a resumed run continues from them.
            self._save_for_resume()
            is_saved = True
            raise
        finally:
            control.enter(Phase.STOPPING)
            # A second Ctrl-C does not wait for the disk.
            if not is_saved and not self._actors.cancels_waits:
                self._save_policies()
        if not is_saved:
            self._save_last_checkpoint()
        control.enter(Phase.FINISHED)
        return self._summary()

    @contextlib.contextmanager
    def _waiting_actors(self) -> Iterator[None]:
        """Makes the actors wait for the next learner if a rank was lost."""
        try:
            yield
        except RankLostError:
            self._actors.leave_waiting()
            raise

    def statistics(self) -> Mapping[str, float]:
        """Returns the statistics of the environments' events in the last record, by `"event/name[group]"`.

        Thread-safe.
        """
        return self._statistics

    def is_done(self) -> bool:
        """Returns whether there is a reason to stop: the steps, the return, or a request."""
        self._end = self._reason_to_end()
        return self._end is not None

    def reached_limits(self) -> dict[str, str]:
        """Returns the limits that a resumed run has reached: the value of each and the run's own, by its option.

        A run out of patience is missing here, because `TrainingEvaluation` logs it.
        """
        target, mean_return, env_steps = self._schedule.stop_return, self._mean_return(), self._progress.env_steps
        limits = {}
        if self._is_solved():
            limits["--stop-return"] = f"{target:g} (mean return {decimal(mean_return)})"
        if env_steps >= self._schedule.total_steps:
            limits["--total-steps"] = f"{self._schedule.total_steps:,} ({env_steps:,} env steps)"
        return limits

    def _mean_return(self) -> float | None:
        """Returns the mean return that `stop_return` applies to."""
        evaluation = self._evaluation
        if evaluation is not None and evaluation.schedule.decides:
            return evaluation.mean_return
        return self._progress.recent_mean_return()

    def _is_solved(self) -> bool:
        # Rank 0 decides by its own episodes.
        target, mean_return = self._schedule.stop_return, self._mean_return()
        return self._ranks.is_first and target is not None and mean_return is not None and mean_return >= target

    def _reason_to_end(self) -> EndReason | None:
        evaluation = self._evaluation
        if self._is_solved():
            return EndReason.SOLVED
        if evaluation is not None and evaluation.is_out_of_patience:
            return EndReason.PATIENCE
        if self._progress.env_steps >= self._schedule.total_steps:
            return EndReason.STEPS
        return EndReason.STOPPED if self._control.stop_requested else None

    @property
    def _has_ended(self) -> bool:
        """True if the run has reached its end."""
        return self._end is not None and self._end.is_final

    def _train_to_the_end(self) -> None:
        """Trains, and notes the reason for the end while clients are still served."""
        try:
            try:
                self._train()
            finally:
                self._write_last_metrics()
            self._await_evaluations()
            self._note_end()
        except CollectInterruptedError:
            self._end = EndReason.STOPPED
            self._note_end()
            raise
        except Exception as error:
            self._end = EndReason.FAILED
            self._run_history.note(EventSeverity.ERROR, f"training has failed: {error}", detail=traceback.format_exc())
            raise
        finally:
            # While clients are still served, because it is the last event that they see.
            self._control.enter(Phase.STOPPING)

    def _train(self) -> None:
        """Runs the loop until there is a reason to stop."""
        source, algorithm, progress = self._experience, self._algorithm, self._progress
        activity = self._run_history.activity
        while self._goes_on():
            activity.enter(LearnerActivity.WAITING)
            fraction = self._fraction()
            try:
                experience = source.next(self._device, progress=fraction)
            except TrainingEndedError:
                # All ranks have agreed on it.
                self._end = EndReason(self._ranks.end)
                return
            began = time.perf_counter()
            with self._control.update_turn():
                # An operator's checkpoint, or one of all ranks: before this update.
                self._record_checkpoint()
                activity.enter(LearnerActivity.UPDATING)
                if self._of_first_batch is None:
                    self._of_first_batch = _observation_size(experience.batch, algorithm.policy.spaces)
                with networks_compute(self._arithmetic):
                    metrics = algorithm.update(experience.batch, progress=fraction)
                source.learnt(experience.batch, algorithm.priorities)
                progress.record(experience)
                self._update_metrics.add(metrics)
                self._is_unwritten = True
                self._run_history.trained(experience.policy_lag, experience.data_age_s)
                every = self._schedule.updates_per_broadcast
                if every is not None and algorithm.n_updates % every == 0:
                    activity.enter(LearnerActivity.PUBLISHING)
                    self._publish()
                    activity.enter(LearnerActivity.UPDATING)
            self._events.learner_update(seconds=time.perf_counter() - began, waited_s=experience.waited_s)
            self._actors.get_epoch_stats_aggregator().end_episode()
            self._keep()

    def _goes_on(self) -> bool:
        """Returns whether to continue training. Several ranks continue until all agree on the end, in `next`."""
        is_done = self.is_done()
        return self._ranks.goes_on(is_done=is_done, end=int(self._end or 0) if self._has_ended else 0)

    def _await_evaluations(self) -> None:
        """Waits for running evaluations when training has run out of steps."""
        self._run_history.activity.enter(LearnerActivity.WAITING)
        evaluation = self._evaluation
        if evaluation is None or self._end is not EndReason.STEPS:
            return
        deadline = time.monotonic() + _LAST_EVALUATIONS_S
        with self._actors.waiting.waiting_for("the running evaluations"):
            while self._actors.evaluators.n_pending and time.monotonic() < deadline:
                if self._control.stop_requested:
                    break
                time.sleep(_LOOK_S)
        self._take_evaluations(evaluation)
        # The last evaluation may have reached the return.
        self.is_done()

    def _publish(self) -> None:
        self._actors.progress = self._fraction()
        self._actors.broadcast_updated_policy(self._algorithm.policy_state())

    def _fraction(self) -> float:
        """Returns the progress of training, in [0, 1]."""
        return min(1.0, self._progress.env_steps / self._schedule.total_steps)

    def _publish_last_policy(self) -> None:
        """Publishes the policy of the last update, unless it has been published."""
        every = self._schedule.updates_per_broadcast
        if every is None or self._algorithm.n_updates % every:
            self._publish()

    def _keep(self) -> None:
        """Writes due files: metrics, the best policy, a checkpoint."""
        now = time.monotonic()
        if self._evaluation is not None:
            self._evaluation.offer_due()
            self._take_evaluations(self._evaluation)
        if now >= self._next_log:
            self._next_log = now + self._schedule.log_interval_s
            self._write_last_metrics()
        self._run_history.activity.enter(LearnerActivity.CHECKPOINTING)
        was_due = self._keeper is not None and self._keeper.keep_due()
        self._record_checkpoint()
        if was_due and self._schedule.checkpoint_interval_updates is not None:
            # Only then, because checkpoints by time follow different updates in each run.
            self._actors.progress = self._fraction()
            self._experience.renew()

    def _record_checkpoint(self) -> None:
        """Writes a record of the moment at which a checkpoint began, so that a resumed run continues its curves."""
        if self._keeper is not None and self._keeper.is_unrecorded:
            self._keeper.is_unrecorded = False
            self._write_last_metrics()

    def _take_evaluations(self, evaluation: TrainingEvaluation) -> None:
        """Writes new evaluation results, each as a separate record at the steps of its policy."""
        for env_steps, values in evaluation.take():
            write_all(self._writers, env_steps, values)
            self._run_history.recorded(env_steps, values)

    def _save(self) -> None:
        """Writes all final files of a run."""
        self._save_policies()
        self._save_last_checkpoint()

    def _note_end(self) -> None:
        """Notes the reason for the end of training, for clients that watch the run."""
        assert self._end is not None, "training ends for a reason"
        now = self._progress.snapshot()
        self._run_history.note(
            EventSeverity.INFO,
            f"training has ended: {self._end.words}, after {now.env_steps} environment steps and {now.updates} updates",
        )

    def _save_policies(self) -> None:
        self._run_history.activity.enter(LearnerActivity.CHECKPOINTING)
        if self._keeper is not None:
            # The checkpoint that follows takes the other half of the time.
            self._keeper.save_policies(self._save_timeout_s() / 2)

    def _save_last_checkpoint(self) -> None:
        # With checkpoints by updates, one more in between would change the updates that follow it.
        if self._keeper is not None and (self._schedule.checkpoint_interval_updates is None or self._has_ended):
            self._keeper.save_last_checkpoint(has_ended=self._has_ended, timeout_s=self._save_timeout_s() / 2)
        self._ranks.meet(_END)

    def _save_for_resume(self) -> None:
        """Saves all state; only logs an error if that fails, because training has already failed for another reason."""
        try:
            self._save()
        except (OSError, RollcastError) as error:
            logger.error("the end of training is not saved: %s; the previous checkpoint is kept", error)  # noqa: TRY400  # the message says it all

    def _save_timeout_s(self) -> float:
        """Returns the time limit for saving; it is shorter for a stopped run, whose operator waits."""
        return 2 * WRITE_TIMEOUT_S if self._has_ended else self._schedule.stop_timeout_s

    def _write_last_metrics(self) -> None:
        """Writes a record of the values since the last one, if there was an update."""
        if not self._is_unwritten:
            return
        self._is_unwritten = False
        now, delays = self._progress.snapshot(), self._progress.end_record()
        values = {
            metric_names.MEAN_RETURN.tag: now.mean_return if now.mean_return is not None else float("nan"),
            metric_names.EPISODES.tag: now.episodes,
            metric_names.UPDATES.tag: now.updates,
            metric_names.POLICY_VERSION.tag: self._actors.policy_version,
            metric_names.ENV_STEPS_PER_SECOND.tag: now.env_steps_per_second,
            metric_names.UPDATES_PER_SECOND.tag: now.updates_per_second,
            metric_names.WAITING_FRACTION.tag: delays.waiting_fraction,
            metric_names.QUEUE_SIZE.tag: self._actors.queue_size,
            metric_names.POLICY_LAG_MEAN.tag: delays.policy_lag_mean,
            metric_names.POLICY_LAG_MAX.tag: delays.policy_lag_max,
            metric_names.STALE_TRAJECTORIES.tag: self._actors.stale_trajectories,
            metric_names.DUPLICATE_ROLLOUTS.tag: self._actors.duplicate_rollouts,
            metric_names.REJECTED_ROLLOUTS.tag: self._actors.rejected_rollouts,
            metric_names.ACTORS_ALIVE.tag: self._actors.n_actors_alive,
            metric_names.DROPPED_EPISODES.tag: self._actors.dropped_episodes,
        }
        n_replayed, n_captured = self._algorithm.take_replayed()
        if n_captured:
            values[metric_names.REPLAYED_FRACTION.tag] = n_replayed / n_captured
        aggregator = self._actors.get_epoch_stats_aggregator()
        statistics = aggregator.epoch_stats()
        # An epoch without a finished episode keeps the previous epoch's statistics.
        if "episode_count/epoch" in statistics:
            self._statistics = aggregator.epoch_stats(without=(EpisodeEvents, TrainingEvents))
        algorithm = short_name(self._control.algorithm)
        losses = {
            metric_names.algorithm_tag(algorithm, name): value for name, value in self._update_metrics.take().items()
        }
        if self._of_first_batch:
            values |= self._of_first_batch
            self._of_first_batch = {}
        record = statistics | values | self._actors.metrics() | self._experience.metrics() | losses
        write_all(self._writers, now.env_steps, record, {metric_names.POLICY_LAG.tag: delays.trajectories_by_lag})
        # The algorithm's metrics first: viewers show metrics in this order.
        self._run_history.recorded(now.env_steps, losses | record)
        # A record ends an epoch: the next record has the episodes after it.
        aggregator.reset_epoch()
        if self._keeper is not None:
            self._keeper.note_statistics()

    def _summary(self) -> TrainingSummary:
        now = self._progress.snapshot()
        evaluated = None if self._evaluation is None else self._evaluation.status()
        if evaluated is not None and not evaluated.evaluations:
            evaluated = None
        return TrainingSummary(
            **of_progress(now),
            env_steps_per_second=now.env_steps / now.seconds,
            solved=self._end is EndReason.SOLVED,
            policy_version=self._actors.policy_version,
            evaluations=0 if evaluated is None else evaluated.evaluations,
            eval_mean_return=None if evaluated is None else evaluated.mean_return,
            best_eval_mean_return=None if evaluated is None else evaluated.best_mean_return,
        )


def _observation_size(batch: Batch, spaces: EnvironmentSpaces) -> dict[str, float]:
    """Returns the mean size of the largest number of the batch's observations, by its tag; empty without numbers."""
    sizes = [
        batch.substeps[key].observation[path].to(torch.float32).abs().mean((0, 1)).max()
        for key, path, leaf in numeric_leaves(spaces)
        if key in batch.substeps and 0 not in leaf.shape
    ]
    return {metric_names.OBSERVATION_SIZE.tag: torch.stack(sizes).max().item()} if sizes else {}
