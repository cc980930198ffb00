"""Puts a training run together: from settings to a trainer."""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch

from actor.environments.make import EnvironmentFactory, environment_spaces, make_vector_env
from actor.policies.torch_policy import TorchPolicy
from actor.threads import limit_threads
from learner.actors.base import DistributedActors
from learner.actors.served import ServedDistributedActors
from learner.algorithms.algorithm import Algorithm
from learner.algorithms.dqn import Dqn
from learner.algorithms.impala import Impala
from learner.algorithms.independent_learners import IndependentLearners
from learner.algorithms.sac import Sac
from learner.algorithms.schedules import linear
from learner.checkpoints.manifest import CheckpointInfo
from learner.checkpoints.resuming import RUNS, newest_checkpoint
from learner.control import TrainingControl
from learner.demonstrations import load_recording
from learner.durable.rollouts import DurableRollouts, refuse_leftovers
from learner.experience import ExperienceSource, FreshExperience
from learner.replay.served import serve_buffers
from learner.replay.substep_buffers import SubstepBuffers, make_buffers
from learner.replayed_experience import MAX_TRAJECTORIES, ReplayedExperience
from learner.replayed_rounds import ReplayedRounds
from learner.run_directory import RunDirectory
from learner.settings import LearnerSettings, TrainSettings
from learner.slot_order import trajectories_of_an_actor
from learner.stall_watchdog import StallWatchdog
from learner.trainer import Schedule, Trainer, TrainingSummary
from learner.writers import JsonLinesWriter, TensorBoardWriter
from services.errors import AddressInUseError, ConfigurationError
from services.policies import PolicySpec
from services.spaces import EnvironmentSpaces
from services.status import Phase

logger = logging.getLogger(__name__)

# By the names of `--algorithm`; each finds its settings under the same name.
ALGORITHMS: dict[str, type[Impala] | type[Sac] | type[Dqn]] = {"impala": Impala, "sac": Sac, "dqn": Dqn}

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

    def train(self) -> TrainingSummary:
        """Trains to the end; see `Trainer.run`. A trainer that stalls is told to the log, with stacks."""
        with StallWatchdog(self._n_done, self.actors.waiting.current, self._may_wait):
            return self.trainer.run()

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
    algorithm = make_algorithm(settings, spaces, device)
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
        run_directory.write_settings(settings.model_dump(mode="json", exclude={"resume"}))
        control = TrainingControl(algorithm=settings.algorithm, run_dir=run_directory.path)
        actors = make_actors(algorithm.policy, control)
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
        if checkpoint is not None and settings.deterministic and isinstance(actors, ServedDistributedActors):
            raise ConfigurationError(
                "--resume with --deterministic, and actors in other processes; expected --actor-kind sequential: the "
                "others cannot begin in step in the middle of a run; begin another run"
            )
        trainer = Trainer(
            make_experience(settings, actors, algorithm, buffers),
            algorithm,
            control,
            Schedule(
                total_steps=settings.total_steps,
                stop_return=stop_return,
                updates_per_broadcast=None if plays_in_rounds(settings) else settings.updates_per_broadcast,
                log_interval_s=settings.log_interval_s,
                checkpoint_interval_s=settings.checkpoint_interval_s,
                checkpoint_interval_updates=settings.checkpoint_interval_updates,
                keep_checkpoints=settings.keep_checkpoints,
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


def make_algorithm(settings: LearnerSettings, spaces: EnvironmentSpaces, device: torch.device) -> Algorithm:
    """Makes the algorithm that the settings name; one a substep, where there are several.

    Raises:
        ConfigurationError: It cannot learn on these spaces.
    """
    spec = PolicySpec(network=settings.network, hidden_sizes=settings.hidden_sizes, activation=settings.activation)

    def make(spaces: EnvironmentSpaces, *, seed: int) -> Algorithm:
        return ALGORITHMS[settings.algorithm](spaces, spec, _algorithm_settings(settings), device=device, seed=seed)

    if len(spaces) == 1:
        return make(spaces, seed=settings.seed)
    return IndependentLearners(spaces, make, seed=settings.seed)


def make_replay_buffers(
    settings: LearnerSettings, spaces: EnvironmentSpaces, *, device: torch.device, announce: Callable[[str], None]
) -> SubstepBuffers:
    """Allocates the buffer that the settings ask for, one a substep; `device` is the learner's.

    Raises:
        ConfigurationError: They cannot work together, or the machine, or the device, has not got the memory.
    """
    return make_buffers(
        settings.replay,
        spaces,
        n_rollout_steps=settings.n_rollout_steps,
        batch_size=settings.batch_size,
        n_envs=MAX_TRAJECTORIES,
        discount=_algorithm_settings(settings).discount,
        seed=settings.seed,
        learner_device=device,
        announce=announce,
    )


def load_initial_data(
    settings: LearnerSettings,
    spaces: EnvironmentSpaces,
    buffers: SubstepBuffers | None,
    *,
    announce: Callable[[str], None],
) -> None:
    """Fills the buffers from the file that the settings name, where they name one.

    Raises:
        ConfigurationError: There is no buffer to fill, or the file cannot be opened, or has no rollouts.
        RecordingError: The file is not whole.
        SpacesMismatchError: It was recorded with other spaces.
    """
    path = settings.initial_data
    if path is None:
        return
    if buffers is None:
        off_policy = " or ".join(name for name, algorithm in ALGORITHMS.items() if algorithm.learns_from_replay)
        raise ConfigurationError(
            f"--initial-data: {str(path)!r} with --algorithm {settings.algorithm}, which learns from fresh rollouts "
            f"and has no replay buffer; expected {off_policy}; choose one of them, or leave --initial-data out"
        )
    load_recording(buffers, path, spaces, announce=announce)


def make_experience(
    settings: LearnerSettings, actors: DistributedActors, algorithm: Algorithm, buffers: SubstepBuffers | None
) -> ExperienceSource:
    """Fresh rollouts, or samples of replay buffers where there are some."""
    if buffers is None:
        return FreshExperience(actors)
    policy, replay = algorithm.policy, settings.replay
    if isinstance(actors, ServedDistributedActors):
        actors.replay = serve_buffers(buffers, policy.spaces, n_rollout_steps=settings.n_rollout_steps)
    beta = linear(replay.beta, replay.beta_end) if replay.sampler == "prioritized" else None
    if plays_in_rounds(settings):
        return ReplayedRounds(
            actors,
            buffers,
            policy=policy,
            policy_state=algorithm.policy_state,
            batch_size=settings.batch_size,
            beta=beta,
        )
    return ReplayedExperience(actors, buffers, policy=policy, batch_size=settings.batch_size, beta=beta)


def plays_in_rounds(settings: LearnerSettings) -> bool:
    """Whether actors fill a replay buffer in rounds; see `ReplayedRounds`."""
    return settings.deterministic and ALGORITHMS[settings.algorithm].learns_from_replay


def actors_batch_size(settings: LearnerSettings, spaces: EnvironmentSpaces, n_actors: int) -> int:
    """Trajectories that are collected at once.

    Args:
        settings: What was asked for.
        spaces: What is learnt on.
        n_actors: How many actors there will be.

    Returns:
        Those of a batch; or, for a replay buffer, those of a round in deterministic mode, else whatever comes first.

    Raises:
        ConfigurationError: In deterministic mode the environment has several substeps.
    """
    if not ALGORITHMS[settings.algorithm].learns_from_replay:
        return settings.batch_size
    return n_actors * trajectories_of_an_actor(spaces, settings.envs_per_actor) if settings.deterministic else 1


def _algorithm_settings(settings: LearnerSettings) -> Any:  # noqa: ANN401 - each algorithm has a class of its own
    return getattr(settings, settings.algorithm)


def probe_spaces(env_factory: EnvironmentFactory) -> EnvironmentSpaces:
    """Makes one environment to see its spaces, and closes it."""
    vector_env = make_vector_env(env_factory, 1)
    try:
        return environment_spaces(vector_env)
    finally:
        vector_env.close()


def choose_device(name: str) -> torch.device:
    """The device that is asked for.

    Raises:
        ConfigurationError: CUDA is asked for, and there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("--device: 'cuda', but torch finds no CUDA device here; use --device cpu, or auto")
    return torch.device(name)


def set_torch_threads(n_threads: int, n_local_actors: int) -> None:
    """Gives torch its threads in this process; 0: the cores that local actors leave, at least one."""
    torch.set_num_threads(n_threads or max(1, len(os.sched_getaffinity(0)) - n_local_actors))


def reward_threshold(env_id: str) -> float | None:
    """The mean return at which gymnasium calls an environment solved, where it says so."""
    spec = gymnasium.registry.get(env_id)
    return spec.reward_threshold if spec is not None else None


def default_run_dir(settings: LearnerSettings) -> Path:
    """`runs/ENV-ALGORITHM-seedN-TIME`."""
    name = settings.env_id.replace("/", "-").replace(":", "-")
    return RUNS / f"{name}-{settings.algorithm}-seed{settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
