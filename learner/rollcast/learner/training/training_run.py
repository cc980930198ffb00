"""Makes a training run from settings: all its parts, and a trainer that is ready."""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from rollcast.actor.environments.atari import raw_frames_hint
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.rounding import fix_rounding
from rollcast.actor.threads import limit_threads
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.checkpoints.manifest import CheckpointInfo
from rollcast.learner.devices.determinism import deterministic_arithmetic
from rollcast.learner.devices.generators import seed_global_generators
from rollcast.learner.devices.precision import UpdateArithmetic
from rollcast.learner.devices.torch_threads import choose_torch_threads
from rollcast.learner.durable.rollouts import refuse_leftovers
from rollcast.learner.health.doctor import LearningDoctor
from rollcast.learner.health.rules import Record
from rollcast.learner.ranks.parts import part_of
from rollcast.learner.ranks.ranks import ONE_RANK, Ranks
from rollcast.learner.replay.substeps import SubstepBuffers
from rollcast.learner.runs.curves import read_records
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.runs.goal import goal_of
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.learner.training.checkpointing import read_log_state
from rollcast.learner.training.control import TrainingControl
from rollcast.learner.training.initial_policy import begin_with_policy
from rollcast.learner.training.run_checks import (
    check_actors_resume,
    check_batch_ahead,
    check_batches,
    check_evaluation,
    check_on_policy,
    check_settings,
)
from rollcast.learner.training.run_folder import create_run, describe_limits, find_checkpoint, write_settings
from rollcast.learner.training.run_parts import (
    batch_line,
    batch_size,
    capture_updates,
    load_initial_data,
    make_algorithm,
    make_arithmetic,
    make_experience,
    make_replay_buffers,
    make_schedule,
    serving_options,
)
from rollcast.learner.training.stall_watchdog import StallWatchdog
from rollcast.learner.training.summary import TrainingSummary
from rollcast.learner.training.trainer import Trainer
from rollcast.learner.writers.json_lines import JsonLinesWriter
from rollcast.learner.writers.prometheus import PrometheusWriter
from rollcast.learner.writers.tensorboard import TensorBoardWriter
from rollcast.learner.writers.tracker import TrackerWriter
from rollcast.learner.writers.tracker_backends import TrackerName, make_tracker
from rollcast.learner.writers.writer import MetricsWriter, close_all
from rollcast.services.errors import AddressInUseError, RankLostError
from rollcast.services.history.history import RunFacts
from rollcast.services.metrics.serving import served_metrics
from rollcast.services.process.cores import usable_cores
from rollcast.services.process.installation import require_extra
from rollcast.services.process.periodic import PeriodicThread
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.settings.file import encode_settings
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.services.status.status import Phase

logger = logging.getLogger(__name__)

# Makes the actors of a run without starting them, from its policy and its serving options.
MakeActors: TypeAlias = Callable[[TorchPolicy, ServingOptions], DistributedActors]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A run that is ready to train.

    Attributes:
        trainer: Runs it.
        control: Controls the run, and reports its status.
        actors: Its actors.
        run_directory: The run's files.
        stop_return: The mean return at which the run ends; None: no such end.
        stops_on_evaluation: True if `stop_return` applies to evaluations.
    """

    trainer: Trainer
    control: TrainingControl
    actors: DistributedActors
    run_directory: RunDirectory
    stop_return: float | None
    stops_on_evaluation: bool = False

    def train(self, serve: Callable[[TrainingSummary], None] | None = None) -> TrainingSummary:
        """Trains to the end; see `Trainer.run`. Logs a stalled trainer with all stacks."""
        note = self.control.run_history.note
        with (
            StallWatchdog(self._n_done, self.actors.waiting.current, self._may_wait, note=note),
            PeriodicThread(self.control.sample, 1.0, name="history"),
        ):
            return self.trainer.run(serve)

    def _n_done(self) -> int:
        return self.control.status().updates + self.actors.n_rollouts

    def _may_wait(self) -> bool:
        """Returns True while a wait is normal: training is paused or has ended, or there are no actors."""
        return self.control.status().phase is not Phase.TRAINING or not self.actors.n_actors_alive


@dataclass(frozen=True, slots=True)
class _Learner:
    """The learning parts, which exist before the run has a folder."""

    algorithm: Algorithm
    buffers: SubstepBuffers | None
    device: torch.device
    arithmetic: UpdateArithmetic


@dataclass(frozen=True, slots=True)
class _Folder:
    """The folder of a run, and the checkpoint from which it continues; None: it begins."""

    directory: RunDirectory
    checkpoint: tuple[Path, CheckpointInfo] | None
    is_new: bool


@contextlib.contextmanager
def training_run(
    settings: LearnerSettings,
    spaces: EnvironmentSpaces,
    make_actors: MakeActors,
    *,
    n_local_actors: int,
    announce: Callable[[str], None] = logger.info,
    ranks: Ranks = ONE_RANK,
) -> Iterator[TrainingRun]:
    """Makes all parts of a run, and closes them at the end.

    Args:
        settings: The settings of the run.
        spaces: The environment's spaces.
        make_actors: Makes the actors without starting them.
        n_local_actors: The actor processes that share this machine's cores with the learner.
        announce: Called with lines for the user: a hint about raw Atari frames, the replay buffer's size, loaded
            demonstrations, and the resumed run. The size comes before the allocation.
        ranks: The ranks of the run, including this one.

    Raises:
        ConfigurationError: The settings are not possible. No files remain.
        RecordingError: The file of demonstrations is damaged. No files remain.
        SpacesMismatchError: The demonstrations have other spaces. No files remain.
    """
    check_settings(settings)
    if hint := raw_frames_hint(spaces):
        announce(hint)
    if settings.batch_size is None:
        announce(batch_line(settings, spaces))
    with ExitStack() as stack:
        device = _prepare_arithmetic(settings, stack, ranks)
        learner = _make_learner(settings, spaces, device, announce, ranks)
        _set_torch_threads(settings, learner.algorithm.policy, n_local_actors, announce, ranks)
        folder = _open_folder(settings, learner, stack, announce, ranks)
        doctor = LearningDoctor(
            settings.model_dump(mode="json"),
            learner.algorithm.policy.spaces,
            _records_before(folder) if ranks.is_first else (),
        )
        control = TrainingControl(
            algorithm=settings.algorithm,
            run_dir=folder.directory.path,
            batch_size=batch_size(settings, spaces),
            facts=RunFacts(
                env_id=settings.env_id,
                seed=settings.seed,
                stop_return=goal_of(settings.stop_return, settings.env_id),
                settings=encode_settings(settings.model_dump(mode="json")).decode(),
            ),
            max_policy_lag=0 if learner.algorithm.on_policy else settings.max_policy_lag,
            pauses_by_rounds=ranks.n_ranks > 1,
            pauses_at="" if ranks.is_first else "the learner of rank 0",
            learning=doctor.findings,
        )
        if ranks.n_ranks == 1 and not settings.deterministic:
            # Ranks make the same number of reductions, and a resumed deterministic run stays bit-identical.
            learner.algorithm.end_updates_early(lambda: control.stop_requested)
        serving = serving_options(settings, control, learner.algorithm, learner.buffers, folder.directory, ranks)
        actors = make_actors(learner.algorithm.policy, serving)
        if folder.checkpoint is not None:
            check_actors_resume(settings, actors)
        writers = (*_open_writers(folder.directory, _cut_metrics(folder), stack), doctor) if ranks.is_first else ()
        if settings.track is not None:
            writers = (*writers, stack.enter_context(_tracker(settings.track, settings, folder.directory)))
        prometheus = PrometheusWriter(control.status, control.actors)
        if settings.metrics_address is not None:
            writers = (*writers, prometheus)
        run = _make_run(settings, learner, actors, control, folder.directory, writers, ranks)
        if folder.checkpoint is not None:
            run.trainer.resume(folder.checkpoint[0])
            _go_on(settings, run, learner.algorithm, folder.checkpoint[1], announce, ranks)
        if not settings.durable:
            _refuse_forgotten_log(settings, learner, folder, ranks.rank)
        try:
            stack.enter_context(served_metrics(settings.metrics_address, prometheus.collect, announce))
            yield run
        except (AddressInUseError, RankLostError):
            # Training has not begun. Without its folder, the same command works once the address is free, or all ranks
            # arrive. Only a log may have rollouts that must not be lost.
            if folder.is_new and not settings.durable and not run.control.status().updates:
                shutil.rmtree(folder.directory.path, ignore_errors=True)
            raise


def _go_on(
    settings: LearnerSettings,
    run: TrainingRun,
    algorithm: Algorithm,
    checkpoint: CheckpointInfo,
    announce: Callable[[str], None],
    ranks: Ranks,
) -> None:
    """Writes the settings of a run after its checkpoint was read, and makes all ranks continue together."""
    if ranks.is_first:
        # Written now: a checkpoint that does not fit the settings has been refused, and the run has kept its old ones.
        write_settings(settings, run.run_directory, checkpoint.env_steps, announce)
        if limits := run.trainer.reached_limits():
            announce(describe_limits(limits))
    # Again: a checkpoint has the generators of rank 0.
    ranks.join(algorithm.join_ranks)
    # From now on, each rank has noted its earlier actors: none of them is taken for a new one.
    ranks.meet("the checkpoint to be read by all ranks")


def _prepare_arithmetic(settings: LearnerSettings, stack: ExitStack, ranks: Ranks) -> torch.device:
    """Sets rounding and torch's generators before any computation; returns the learner's device."""
    device = ranks.choose_device(settings.device)
    fix_rounding()
    if settings.deterministic:
        limit_threads(1)
        stack.enter_context(deterministic_arithmetic(device))
    seed_global_generators(device, settings.seed)
    return device


def _set_torch_threads(
    settings: LearnerSettings,
    policy: TorchPolicy,
    n_local_actors: int,
    announce: Callable[[str], None],
    ranks: Ranks,
) -> None:
    """Sets torch's number of threads, and announces it if there are several. A deterministic run has one thread."""
    if settings.deterministic:
        return
    n_threads, why = choose_torch_threads(
        settings.torch_threads,
        sum(weights.numel() for weights in policy.parameters()),
        n_cores=usable_cores(),
        n_local_actors=n_local_actors,
        n_local_ranks=ranks.n_local_ranks,
        of_openmp=os.environ.get("OMP_NUM_THREADS"),
    )
    torch.set_num_threads(n_threads)
    if n_threads > 1:
        announce(f"updates compute with {n_threads} threads of torch: {why}")


def _make_learner(
    settings: LearnerSettings,
    spaces: EnvironmentSpaces,
    device: torch.device,
    announce: Callable[[str], None],
    ranks: Ranks,
) -> _Learner:
    """Makes the algorithm, with the initial weights of a new run, and allocates its buffers."""
    arithmetic = make_arithmetic(settings, device)
    algorithm = make_algorithm(settings, spaces, device)
    check_on_policy(settings, algorithm)
    check_evaluation(settings, algorithm)
    check_batches(settings, algorithm)
    check_batch_ahead(settings, algorithm)
    capture_updates(settings, algorithm, device, ranks.n_ranks)
    if settings.resume is None and settings.initial_policy is not None:
        announce(begin_with_policy(algorithm, settings.initial_policy))
    ranks.join(algorithm.join_ranks)
    buffers = None
    if algorithm.learns_from_replay:
        buffers = make_replay_buffers(settings, algorithm.policy.spaces, device=device, announce=announce)
    return _Learner(algorithm, buffers, device, arithmetic)


def _open_folder(
    settings: LearnerSettings,
    learner: _Learner,
    stack: ExitStack,
    announce: Callable[[str], None],
    ranks: Ranks,
) -> _Folder:
    """Creates the folder of a new run, or finds the checkpoint of a resumed one; locks it.

    For a run without a checkpoint, it writes the settings, and loads demonstrations, if any. They are loaded before a
    new folder is created, so that a damaged file leaves no folder behind.
    """
    if not ranks.is_first:
        directory, checkpoint = ranks.told_run()
        if checkpoint is None:
            load_initial_data(settings, learner.algorithm.policy, learner.buffers, announce=announce)
        return _Folder(directory, checkpoint, is_new=False)
    if settings.resume is not None:
        directory, checkpoint = find_checkpoint(settings, stack, announce)
        if checkpoint is None:
            load_initial_data(settings, learner.algorithm.policy, learner.buffers, announce=announce)
    else:
        load_initial_data(settings, learner.algorithm.policy, learner.buffers, announce=announce)
        directory, checkpoint = create_run(settings, stack), None
    if checkpoint is None:
        write_settings(settings, directory, 0, announce)
    ranks.tell_run(directory, checkpoint)
    return _Folder(directory, checkpoint, is_new=settings.resume is None)


def _records_before(folder: _Folder) -> Iterator[Record]:
    """Yields the records of a resumed run, up to its checkpoint."""
    if folder.checkpoint is not None:
        last = folder.checkpoint[1].env_steps
        yield from (record for record in read_records(folder.directory.metrics_path) if record["env_steps"] <= last)


def _cut_metrics(folder: _Folder) -> int:
    """Removes records after the checkpoint, which the run will repeat. Returns the first new step."""
    if folder.is_new:
        return 0
    env_steps = folder.checkpoint[1].env_steps if folder.checkpoint is not None else 0
    folder.directory.cut_metrics(env_steps)
    return env_steps + 1


def _open_writers(directory: RunDirectory, first_step: int, stack: ExitStack) -> tuple[MetricsWriter, ...]:
    """Opens the writers of metrics."""
    writers = (
        JsonLinesWriter(directory.metrics_path),
        TensorBoardWriter(directory.tensorboard_path, first_step=first_step),
    )
    stack.callback(close_all, writers)
    return writers


@contextlib.contextmanager
def _tracker(name: TrackerName, settings: LearnerSettings, directory: RunDirectory) -> Iterator[MetricsWriter]:
    """Opens the writer for an experiment tracker, and closes it.

    Raises:
        ConfigurationError: The tracker's package is not installed.
    """
    require_extra(name, f"--track {name}")
    values = settings.model_dump(mode="json")
    tracker = make_tracker(name, project=settings.track_project, run_dir=directory.path, settings=values)
    writer = TrackerWriter(name, tracker, directory.path)
    try:
        yield writer
    finally:
        writer.close()


def _make_run(
    settings: LearnerSettings,
    learner: _Learner,
    actors: DistributedActors,
    control: TrainingControl,
    directory: RunDirectory,
    writers: tuple[MetricsWriter, ...],
    ranks: Ranks,
) -> TrainingRun:
    stop_return = goal_of(settings.stop_return, settings.env_id)
    schedule = make_schedule(settings, stop_return)
    experience = make_experience(settings, actors, learner.algorithm, learner.buffers)
    trainer = Trainer(
        experience,
        learner.algorithm,
        control,
        schedule,
        device=learner.device,
        arithmetic=learner.arithmetic.networks,
        run=directory,
        writers=writers,
        ranks=ranks,
    )
    return TrainingRun(
        trainer=trainer,
        control=control,
        actors=actors,
        run_directory=directory,
        stop_return=stop_return,
        stops_on_evaluation=schedule.evaluation is not None and schedule.evaluation.decides,
    )


def _refuse_forgotten_log(settings: LearnerSettings, learner: _Learner, folder: _Folder, rank: int) -> None:
    """Removes the log of a run that continues without one; refuses if the log has rollouts that no checkpoint has."""
    header = RecordingHeader(
        spaces=learner.algorithm.policy.spaces,
        n_rollout_steps=settings.n_rollout_steps,
        n_envs=settings.envs_per_actor,
    )
    part = None if folder.checkpoint is None else part_of(folder.checkpoint[0], rank)
    log_state = read_log_state(part) if part is not None and part.is_dir() else None
    refuse_leftovers(folder.directory.log_path_of(rank), header, log_state)
