"""Puts a training run together: from settings to a trainer."""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gymnasium

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.threads import limit_threads
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.served import ServedDistributedActors
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.defaults import short_name
from rollcast.learner.checkpoints.manifest import CheckpointInfo
from rollcast.learner.checkpoints.resuming import RUNS, changes_bits, newest_checkpoint, settings_changes
from rollcast.learner.durable.rollouts import DurableRollouts, refuse_leftovers
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.control import TrainingControl
from rollcast.learner.training.initial_policy import begin_with_policy
from rollcast.learner.training.run_parts import (
    choose_device,
    load_initial_data,
    make_algorithm,
    make_experience,
    make_replay_buffers,
    plays_in_rounds,
    set_torch_threads,
)
from rollcast.learner.training.schedule import TrainingSchedule
from rollcast.learner.training.stall_watchdog import StallWatchdog
from rollcast.learner.training.trainer import Trainer, TrainingSummary
from rollcast.learner.writers import JsonLinesWriter, TensorBoardWriter
from rollcast.services.errors import AddressInUseError, ConfigurationError
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.services.status.status import Phase

logger = logging.getLogger(__name__)

# Said where a run would otherwise have the bits of one that was never interrupted.
_OTHER_BITS = (
    "from here on it has other bits than a run without the change, or one that had these settings from the start"
)

MakeActors = Callable[[TorchPolicy, TrainingControl], DistributedActors]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A run, ready to go.

    Attributes:
        trainer: Runs it.
        control: Steers it and knows how it stands.
        actors: Who acts in it.
        run_directory: What it leaves behind.
        stop_return: The mean return at which it ends; None: at none.
    """

    trainer: Trainer
    control: TrainingControl
    actors: DistributedActors
    run_directory: RunDirectory
    stop_return: float | None

    def train(self, serve: Callable[[TrainingSummary], None] | None = None) -> TrainingSummary:
        """Trains to the end; see `Trainer.run`. A trainer that stalls is told to the log, with stacks."""
        with StallWatchdog(self._n_done, self.actors.waiting.current, self._may_wait):
            return self.trainer.run(serve)

    def _n_done(self) -> int:
        return self.control.status().updates + sum(info.rollouts for info in self.control.actors())

    def _may_wait(self) -> bool:
        """Whether nobody is to wonder that nothing goes on: training is paused, or there is nobody to play."""
        return self.control.status().phase is not Phase.TRAINING or not self.actors.n_actors_alive


@contextlib.contextmanager
def training_run(
    settings: LearnerSettings,
    spaces: EnvironmentSpaces,
    make_actors: MakeActors,
    *,
    n_local_actors: int,
    announce: Callable[[str], None] = logger.info,
) -> Iterator[TrainingRun]:
    """Makes everything a run needs, and closes it.

    Args:
        settings: What was asked for.
        spaces: What is learnt on.
        make_actors: Makes the actors, not started.
        n_local_actors: Processes that share this machine's cores with the learner.
        announce: Called with what the replay buffer will take, where there is one, before it is allocated; and with
            what demonstrations it was filled with.

    Raises:
        ConfigurationError: Something asked for cannot be had; nothing is left behind.
        RecordingError: The file of demonstrations is not whole; likewise.
        SpacesMismatchError: It was recorded with other spaces; likewise.
    """
    _check_deterministic(settings)
    _check_durable(settings)
    if settings.deterministic:
        limit_threads(1)
    else:
        set_torch_threads(settings.torch_threads, n_local_actors)
    device = choose_device(settings.device)
    algorithm = _begin(settings, make_algorithm(settings, spaces, device), announce)
    buffers = None
    if algorithm.learns_from_replay:
        buffers = make_replay_buffers(settings, algorithm.policy.spaces, device=device, announce=announce)
    run_directory = RunDirectory(settings.run_dir or default_run_dir(settings))
    is_new = settings.resume is None
    with contextlib.ExitStack() as stack:
        checkpoint = None
        if not is_new:
            stack.enter_context(run_directory.locked())
            checkpoint = newest_checkpoint(run_directory)
            announce(describe_resume(run_directory, checkpoint))
        if checkpoint is None:
            load_initial_data(settings, algorithm.policy.spaces, buffers, announce=announce)
        if is_new:
            run_directory = RunDirectory.create(run_directory.path.parent, run_directory.path.name)
            stack.enter_context(run_directory.locked())
        _write_settings(settings, run_directory, checkpoint, announce)
        control = TrainingControl(
            algorithm=settings.algorithm, run_dir=run_directory.path, batch_size=settings.batch_size
        )
        actors = make_actors(algorithm.policy, control)
        if checkpoint is not None and settings.deterministic and isinstance(actors, ServedDistributedActors):
            raise ConfigurationError(
                "--resume with --deterministic, and actors in other processes; expected --actor-kind sequential: the "
                "others cannot begin in step in the middle of a run; begin another run"
            )
        stop_return = settings.stop_return if settings.stop_return is not None else reward_threshold(settings.env_id)
        first_step = 0
        if not is_new:
            env_steps = checkpoint[1].env_steps if checkpoint is not None else 0
            run_directory.cut_metrics(env_steps)
            first_step = env_steps + 1
        writers = (
            JsonLinesWriter(run_directory.metrics_path),
            TensorBoardWriter(run_directory.tensorboard_path, first_step=first_step),
        )
        for writer in writers:
            stack.callback(writer.close)
        trainer = Trainer(
            make_experience(settings, actors, algorithm, buffers),
            algorithm,
            control,
            TrainingSchedule(
                total_steps=settings.total_steps,
                stop_return=stop_return,
                updates_per_broadcast=None if plays_in_rounds(settings) else settings.updates_per_broadcast,
                log_interval_s=settings.log_interval_s,
                checkpoint_interval_s=settings.checkpoint_interval_s,
                checkpoint_interval_updates=settings.checkpoint_interval_updates,
                keep_checkpoints=settings.keep_checkpoints,
                stop_timeout_s=settings.stop_timeout_s,
            ),
            device=device,
            run=run_directory,
            writers=writers,
        )
        if checkpoint is not None:
            trainer.resume(checkpoint[0])
        _keep_durable(settings, actors, run_directory, control)
        try:
            yield TrainingRun(
                trainer=trainer, control=control, actors=actors, run_directory=run_directory, stop_return=stop_return
            )
        except AddressInUseError:
            # nothing has been learnt: leave nothing behind, so that the same command works when the address is free
            if is_new:
                shutil.rmtree(run_directory.path, ignore_errors=True)
            raise


def _begin(settings: LearnerSettings, algorithm: Algorithm, announce: Callable[[str], None]) -> Algorithm:
    """Gives the algorithm of a new run the weights that it is to begin with, and returns it."""
    if settings.resume is None and settings.initial_policy is not None:
        announce(begin_with_policy(algorithm, settings.initial_policy))
    return algorithm


def _write_settings(
    settings: LearnerSettings,
    run: RunDirectory,
    checkpoint: tuple[Path, CheckpointInfo] | None,
    announce: Callable[[str], None],
) -> None:
    """Writes the settings of a run, with what was changed when it was resumed, and says so.

    Raises:
        OSError: They cannot be written; of a new run nothing is left.
    """
    values = settings.model_dump(mode="json", exclude={"resume"})
    if settings.resume is None:
        try:
            run.write_settings(values)
        except (OSError, ConfigurationError):
            shutil.rmtree(run.path, ignore_errors=True)
            raise
        return
    history = run.read_history()
    changes = settings_changes(settings, run.read_settings())
    if changes:
        told = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changes.items())
        is_exact = settings.deterministic or settings.checkpoint_interval_updates is not None
        other_bits = is_exact and changes_bits(settings, changes)
        announce(f"changed settings: {told}" + (f"; {_OTHER_BITS}" if other_bits else ""))
        history.append(
            {
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "env_steps": 0 if checkpoint is None else checkpoint[1].env_steps,
                "changed": {name: list(values) for name, values in changes.items()},
            }
        )
    run.write_settings(values, history=history)


def describe_resume(run: RunDirectory, checkpoint: tuple[Path, CheckpointInfo] | None) -> str:
    """Where a run goes on, in a line for people."""
    if checkpoint is None:
        return f"resuming {run.path}: it has no checkpoint yet, and begins again"
    info = checkpoint[1]
    ended = "; it has ended" if info.has_ended else ""
    return f"resuming {run.path}: {info.n_updates:,} updates, {info.env_steps:,} env steps{ended}"


def _check_deterministic(settings: LearnerSettings) -> None:
    if not settings.deterministic:
        return
    if plays_in_rounds(settings):
        if settings.replay.samples_per_insert is None:
            raise ConfigurationError(
                "--deterministic with a replay buffer and without --replay.samples-per-insert; expected a number: it "
                "says how many updates there are between two rounds of the actors; set it"
            )
    elif settings.updates_per_broadcast != 1:
        raise ConfigurationError(
            f"--deterministic with --algorithm {settings.algorithm} and --updates-per-broadcast "
            f"{settings.updates_per_broadcast}; expected 1: actors play one rollout for each policy that is cast, "
            "and one of each makes a batch; leave it out"
        )


def _check_durable(settings: LearnerSettings) -> None:
    if not settings.durable:
        return
    if isinstance(settings, TrainSettings) and settings.actor_kind == "sequential":
        raise ConfigurationError(
            "--durable with --actor-kind sequential; expected subprocess: sequential actors die with the learner, and "
            "nothing is acknowledged to them; leave one of the two out"
        )
    if settings.deterministic:
        raise ConfigurationError(
            "--durable with --deterministic; expected one of the two: actors in step cannot begin in the middle of a "
            "run, so nobody could go on with what was acknowledged; leave one out"
        )


def _keep_durable(
    settings: LearnerSettings, actors: DistributedActors, run: RunDirectory, control: TrainingControl
) -> None:
    """Has rollouts written to the run's log, or sees that there is none that would be forgotten."""
    if not isinstance(actors, ServedDistributedActors):
        return
    if not settings.durable:
        refuse_leftovers(run.log_path, actors.rollouts_header(), actors.log_before)
        return
    actors.durable = DurableRollouts(
        run.log_path, max_bytes=settings.durable_max_bytes, ask_for_checkpoint=control.save_checkpoint
    )


def reward_threshold(env_id: str) -> float | None:
    """The mean return at which gymnasium calls an environment solved, where it says so."""
    spec = gymnasium.registry.get(env_id)
    return spec.reward_threshold if spec is not None else None


def default_run_dir(settings: LearnerSettings) -> Path:
    """`runs/ENV-ALGORITHM-seedN-TIME`."""
    name = settings.env_id.replace("/", "-").replace(":", "-")
    return (
        RUNS
        / f"{name}-{short_name(settings.algorithm)}-seed{settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    )
