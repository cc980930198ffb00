"""Makes the parts of a training run from its settings: arithmetic, algorithm, buffers, experience, schedule."""

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from rollcast.actor.entry_points import load_entry_point
from rollcast.actor.policies.observation_moments import normalized_leaves
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.appo import Appo
from rollcast.learner.algorithms.defaults import if_default, is_own, readers_of
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.independent_learners import IndependentLearners
from rollcast.learner.algorithms.minibatches import default_items_in_minibatch
from rollcast.learner.algorithms.observation_statistics import RolloutObserver
from rollcast.learner.algorithms.own_algorithm import make_own_algorithm, wants_replay
from rollcast.learner.algorithms.ppo import Ppo
from rollcast.learner.algorithms.ppo_settings import ClippedSurrogateSettings
from rollcast.learner.algorithms.r2d2 import R2d2
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.devices.graphs import CudaGraph, GraphedWork
from rollcast.learner.devices.precision import UpdateArithmetic, choose_arithmetic, set_tf32
from rollcast.learner.durable.rollouts import DurableRollouts
from rollcast.learner.experience.experience import ExperienceSource, FreshExperience
from rollcast.learner.experience.replayed import MAX_TRAJECTORIES, ReplayedExperience
from rollcast.learner.experience.replayed_rounds import ReplayedRounds
from rollcast.learner.queueing.slot_order import trajectories_of_an_actor
from rollcast.learner.ranks.ranks import ONE_RANK, Ranks
from rollcast.learner.replay.demonstrations import load_recording
from rollcast.learner.replay.served import serve_buffers
from rollcast.learner.replay.substeps import SubstepBuffers, make_buffers
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.serving.evaluations import Evaluations
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.control import TrainingControl
from rollcast.learner.training.schedule import EvaluationSchedule, TrainingSchedule
from rollcast.services.errors import ConfigurationError
from rollcast.services.joining.evaluation import EvaluationActions, EvaluationPlan
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces, describe_space

# The discount of a replay buffer for a custom algorithm without a `discount` argument.
_DISCOUNT = 0.99

# The smallest default of B; IMPALA's also applies to custom algorithms.
_LEAST_TRAJECTORIES: Final = {"impala": 4, "ppo": 16, "appo": 16}
# The default of B for custom algorithms that learn from replay.
_REPLAY_ENTRIES: Final = 8


# By the name for `--algorithm`; the settings of each have the same name.
ALGORITHMS: dict[str, type[Impala] | type[Ppo] | type[Appo] | type[Sac] | type[Dqn] | type[R2d2]] = {
    "impala": Impala,
    "ppo": Ppo,
    "appo": Appo,
    "sac": Sac,
    "dqn": Dqn,
    "r2d2": R2d2,
}


def make_arithmetic(settings: LearnerSettings, device: torch.device) -> UpdateArithmetic:
    """Chooses the arithmetic of updates. Sets it process-wide where torch has no smaller scope.

    Raises:
        ConfigurationError: The device does not support the precision.
    """
    arithmetic = choose_arithmetic(
        settings.precision, settings.channels_last, device, deterministic=settings.deterministic
    )
    if device.type == "cuda":
        set_tf32(arithmetic)
    return arithmetic


def capture_updates(settings: LearnerSettings, algorithm: Algorithm, device: torch.device, n_ranks: int = 1) -> None:
    """Makes updates replay as CUDA graphs, if the settings ask for CUDA graphs. Call it before the first update.

    Raises:
        ConfigurationError: The device or the algorithm does not support the settings.
    """
    if settings.cuda_graphs == "off":
        return
    why_not = algorithm.why_not_captured()
    if device.type != "cuda":
        why_not = f"the device is {device}, which has no graphs"
    elif settings.deterministic:
        why_not = "graphs are not tested to be bit-identical, as --deterministic promises"
    elif n_ranks > 1:
        why_not = "graphs are not tested with several ranks"
    if why_not is None:
        algorithm.capture_updates(lambda generators: GraphedWork(lambda: CudaGraph(device, generators)))
    elif settings.cuda_graphs == "on":
        raise ConfigurationError(
            f"--cuda-graphs on: {why_not}; expected a GPU, and updates without decisions of the host; choose "
            "--cuda-graphs auto, or off"
        )


def make_algorithm(settings: LearnerSettings, spaces: EnvironmentSpaces, device: torch.device) -> Algorithm:
    """Makes the algorithm of the settings; one for each substep, if there are several.

    Raises:
        ConfigurationError: The algorithm does not support these spaces.
    """
    spec = _policy_spec(settings)
    _check_normalization(settings, spaces)
    name, kwargs = settings.algorithm, settings.algorithm_kwargs
    if kwargs and not is_own(name):
        raise ConfigurationError(
            f"--algorithm-kwargs: {kwargs} with --algorithm {name}{if_default(settings)}; expected none, because this "
            f"algorithm has its own options: see --{name}.* in rollcast train --algorithm {name} --help"
        )

    def make(spaces: EnvironmentSpaces, *, seed: int) -> Algorithm:
        if is_own(name):
            return make_own_algorithm(name, spaces, spec, kwargs, device=device, seed=seed)
        return ALGORITHMS[settings.algorithm](spaces, spec, _algorithm_settings(settings), device=device, seed=seed)

    def make_rounding(spaces: EnvironmentSpaces, *, seed: int) -> Algorithm:
        algorithm = make(spaces, seed=seed)
        algorithm.policy.rounds_weights = settings.policy_rounding == "bfloat16"
        return algorithm

    several = len(spaces) > 1
    if several:
        algorithm: Algorithm = IndependentLearners(spaces, make_rounding, seed=settings.seed)
        # The first policy is published from the joint policy.
        algorithm.policy.rounds_weights = settings.policy_rounding == "bfloat16"
    else:
        algorithm = make_rounding(spaces, seed=settings.seed)
    if algorithm.learns_from_replay is not learns_from_replay(settings):
        raise ConfigurationError(
            f"--algorithm {name!r} makes an algorithm whose learns_from_replay is {algorithm.learns_from_replay}; "
            "expected the same attribute on its factory; name the class itself, or set "
            "learns_from_replay on the function"
        )
    return algorithm


def _policy_spec(settings: LearnerSettings) -> PolicySpec:
    """Returns the architecture of the settings; the algorithm chooses its head."""
    return PolicySpec(
        network=settings.network,
        hidden_sizes=settings.hidden_sizes,
        activation=settings.activation,
        recurrence=settings.recurrence,
        recurrent_size=settings.recurrent_size,
        normalize_observations=settings.normalize_observations,
        observation_clip=settings.observation_clip,
        frame_stack=settings.frame_stack,
    )


def _check_normalization(settings: LearnerSettings, spaces: EnvironmentSpaces) -> None:
    observations = [substep.observation for substep in spaces.values()]
    if settings.normalize_observations and not any(normalized_leaves(space) for space in observations):
        found = ", ".join(describe_space(space) for space in observations)
        raise ConfigurationError(
            f"--normalize-observations, and observations are {found}; expected a Box of floats among their leaves: "
            "images, Discrete observations and other integers are not normalised; leave it out"
        )


def learns_from_replay(settings: LearnerSettings) -> bool:
    """Returns whether the algorithm of the settings learns from a replay buffer.

    Raises:
        ConfigurationError: The factory of a custom algorithm does not exist.
    """
    if is_own(settings.algorithm):
        return wants_replay(load_entry_point(settings.algorithm))
    return ALGORITHMS[settings.algorithm].learns_from_replay


def make_replay_buffers(
    settings: LearnerSettings, spaces: EnvironmentSpaces, *, device: torch.device, announce: Callable[[str], None]
) -> SubstepBuffers:
    """Allocates the replay buffers of the settings, one for each substep.

    Args:
        settings: The settings of the run.
        spaces: The environment's spaces.
        device: The learner's device.
        announce: Called with the size of the buffers before they are allocated. Also called with the number of updates
            per step if there are several.

    Raises:
        ConfigurationError: Settings exclude each other, or the machine or the device has too little memory.
    """
    if settings.replay.burn_in and settings.recurrence == "none":
        raise ConfigurationError(
            f"--replay.burn-in: {settings.replay.burn_in} with --recurrence none; expected 0, because burn-in warms up "
            "the stored state of a recurrent policy; choose --recurrence lstm or gru, or leave --replay.burn-in out"
        )
    n_entries = batch_size(settings, spaces)
    _announce_many_updates(settings, n_entries, announce)
    return make_buffers(
        settings.replay,
        spaces,
        n_rollout_steps=settings.n_rollout_steps,
        batch_size=n_entries,
        n_envs=MAX_TRAJECTORIES,
        state_size=_policy_spec(settings).state_size,
        discount=_discount(settings),
        seed=settings.seed,
        learner_device=device,
        frame_stack=settings.frame_stack,
        announce=announce,
    )


def _announce_many_updates(settings: LearnerSettings, n_entries: int, announce: Callable[[str], None]) -> None:
    replay = settings.replay
    if replay.samples_per_insert is None:
        return
    steps_of_entry = settings.n_rollout_steps if replay.entry == "rollouts" else 1
    n_updates = replay.samples_per_insert / (n_entries * steps_of_entry)
    if n_updates > 1.0:
        announce(
            f"{n_updates:g} updates to each step of an environment, because --replay.samples-per-insert is "
            f"{replay.samples_per_insert:g} with --batch-size {n_entries}; "
            f"--replay.samples-per-insert {n_entries * steps_of_entry} makes one"
        )


def load_initial_data(
    settings: LearnerSettings,
    policy: TorchPolicy,
    buffers: SubstepBuffers | None,
    *,
    announce: Callable[[str], None],
) -> None:
    """Fills the buffers from the file of demonstrations in the settings, if any.

    Raises:
        ConfigurationError: The algorithm has no buffer, or the file cannot be opened or has no rollouts.
        RecordingError: The file is damaged.
        SpacesMismatchError: The file was recorded with other spaces.
    """
    path = settings.initial_data
    if path is None:
        return
    if buffers is None:
        raise ConfigurationError(
            f"--initial-data: {str(path)!r} with --algorithm {settings.algorithm}{if_default(settings)}, which "
            f"learns from fresh rollouts and has no replay buffer; expected {readers_of('replay')}; choose "
            "one of them, or leave --initial-data out"
        )
    load_recording(buffers, path, policy.spaces, announce=announce, observe=RolloutObserver(policy))


def make_experience(
    settings: LearnerSettings, actors: DistributedActors, algorithm: Algorithm, buffers: SubstepBuffers | None
) -> ExperienceSource:
    """Makes the source of batches: fresh rollouts, or samples of the replay buffers, if any."""
    if buffers is None:
        return FreshExperience(actors)
    policy, replay = algorithm.policy, settings.replay
    beta = replay.schedules().get("beta")
    if plays_in_rounds(settings):
        return ReplayedRounds(
            actors,
            buffers,
            policy=policy,
            policy_state=algorithm.policy_state,
            batch_size=batch_size(settings, policy.spaces),
            beta=beta,
        )
    return ReplayedExperience(actors, buffers, policy=policy, batch_size=batch_size(settings, policy.spaces), beta=beta)


def serving_options(
    settings: LearnerSettings,
    control: TrainingControl,
    algorithm: Algorithm,
    buffers: SubstepBuffers | None,
    run: RunDirectory,
    ranks: Ranks = ONE_RANK,
) -> ServingOptions:
    """Returns the serving options for the actors of a run.

    Args:
        settings: The settings of the run.
        control: Answers the control API, and makes checkpoints when the log is large.
        algorithm: The algorithm whose policy the actors play.
        buffers: The replay buffers to serve, too; None: no buffers.
        run: The run's folder, with the write-ahead log.
        ranks: The ranks of the run.

    Raises:
        ConfigurationError: A file of certificates or tokens is invalid.
    """
    replay = durable = evaluations = None
    if evaluation_schedule(settings) is not None:
        plan = EvaluationPlan(
            n_episodes=settings.eval_episodes,
            seed=settings.seed,
            actions=EvaluationActions.of_option(settings.eval_actions),
            opponents=settings.eval_opponents is not None,
        )
        evaluations = Evaluations(
            plan, join_lease_s=settings.server_limits().join_lease_s, note=control.run_history.note
        )
    if buffers is not None:
        replay = serve_buffers(buffers, algorithm.policy.spaces, n_rollout_steps=settings.n_rollout_steps)
    if settings.durable:
        durable = DurableRollouts(
            run.log_path_of(ranks.rank),
            max_bytes=settings.durable_max_bytes,
            ask_for_checkpoint=control.save_checkpoint,
        )
    return ServingOptions(
        addresses=(settings.address,),
        max_actors=settings.max_actors,
        max_policy_lag=settings.max_policy_lag,
        bounded_staleness=settings.bounded_staleness,
        on_policy=algorithm.on_policy,
        deterministic=settings.deterministic,
        control=control,
        history=control,
        run_history=control.run_history,
        security=settings.server_security(),
        announcement=settings.announcement(),
        collect_timeout_s=settings.collect_timeout_s,
        limits=settings.server_limits(),
        replay=replay,
        assemble_ahead=None if settings.batch_ahead == "auto" else settings.batch_ahead == "on",
        durable=durable,
        evaluations=evaluations,
        newest_version=ranks.newest_version,
        assignment=ranks.assignment,
    )


def make_schedule(settings: LearnerSettings, stop_return: float | None) -> TrainingSchedule:
    """Makes the schedule of a run.

    Args:
        settings: The settings of the run.
        stop_return: The mean return at which the run ends; None: no such end.
    """
    return TrainingSchedule(
        total_steps=settings.total_steps,
        stop_return=stop_return,
        updates_per_broadcast=None if plays_in_rounds(settings) else settings.updates_per_broadcast,
        log_interval_s=settings.log_interval_s,
        checkpoint_interval_s=settings.checkpoint_interval_s,
        checkpoint_interval_updates=settings.checkpoint_interval_updates,
        keep_checkpoints=settings.keep_checkpoints,
        stop_timeout_s=settings.stop_timeout_s,
        evaluation=evaluation_schedule(settings),
    )


def evaluation_schedule(settings: LearnerSettings) -> EvaluationSchedule | None:
    """Returns the schedule of a run's evaluations; None without evaluations."""
    if settings.eval_interval_s is None and settings.eval_interval_steps is None:
        return None
    stop_on = settings.stop_on or ("eval" if evaluation_may_decide(settings) else "train")
    return EvaluationSchedule(
        interval_s=settings.eval_interval_s,
        interval_steps=settings.eval_interval_steps,
        patience=settings.eval_patience,
        n_opponents=settings.eval_opponents,
        decides=stop_on == "eval",
    )


def evaluation_may_decide(settings: LearnerSettings) -> bool:
    """Returns whether an evaluation may end training: in a deterministic run, the clock must not decide this.

    An evaluator in another process reports at the end of its play, which falls after another update in each run.
    Sequential actors evaluate in the trainer's thread.
    """
    is_sequential = isinstance(settings, TrainSettings) and settings.actor_kind == "sequential"
    return not settings.deterministic or (is_sequential and settings.eval_interval_s is None)


def plays_in_rounds(settings: LearnerSettings) -> bool:
    """Returns whether actors fill the replay buffers in rounds; see `ReplayedRounds`."""
    return settings.deterministic and learns_from_replay(settings)


def batch_size(settings: LearnerSettings, spaces: EnvironmentSpaces) -> int:
    """Returns B: the value in the settings, or a rollout of each environment of `LearnerSettings.actors_of_a_batch`.

    If the actors are few, each contributes several rollouts, so that updates are worthwhile.

    Raises:
        ConfigurationError: The factory of a custom algorithm does not exist.
    """
    if settings.batch_size is not None:
        return settings.batch_size
    if learns_from_replay(settings):
        return _REPLAY_ENTRIES
    least = _LEAST_TRAJECTORIES.get(settings.algorithm, _LEAST_TRAJECTORIES["impala"])
    n_actors = settings.actors_of_a_batch()
    of_actor = settings.envs_per_actor * max(substep.n_agents for substep in spaces.values())
    # Actors in step contribute one rollout each to every batch.
    return of_actor * (n_actors if settings.deterministic else max(n_actors, math.ceil(least / of_actor)))


def batch_line(settings: LearnerSettings, spaces: EnvironmentSpaces) -> str:
    """Returns a line about the size of batches and of their minibatches, and the effect of another number of actors.

    Raises:
        ConfigurationError: As in `batch_size`.
    """
    owner = "environment" if all(substep.n_agents == 1 for substep in spaces.values()) else "agent"
    line = (
        f"batches have {batch_size(settings, spaces)} trajectories of one {owner} each (--batch-size), with "
        f"{settings.n_rollout_steps} steps (--n-rollout-steps)"
    )
    own = getattr(settings, settings.algorithm, None)
    if isinstance(own, ClippedSurrogateSettings):
        n_steps = own.minibatch_steps or _default_minibatch_steps(settings, spaces)
        line += f", in minibatches of {n_steps} steps (--{settings.algorithm}.minibatch-steps)"
    kind = ALGORITHMS.get(settings.algorithm)
    if kind is None or not kind.on_policy or isinstance(settings, TrainSettings) or settings.deterministic:
        return line
    return (
        f"{line}; they are from two actors: with more actors, some wait for the next batch; set --batch-size to the "
        "trajectories of all actors, or choose --algorithm appo or impala, whose actors do not wait"
    )


def _default_minibatch_steps(settings: LearnerSettings, spaces: EnvironmentSpaces) -> int:
    n_steps = batch_size(settings, spaces) * settings.n_rollout_steps
    of_item = 1 if settings.recurrence == "none" else settings.n_rollout_steps
    return min(n_steps, default_items_in_minibatch(n_steps // of_item, of_item) * of_item)


def actors_batch_size(settings: LearnerSettings, spaces: EnvironmentSpaces, n_actors: int) -> int:
    """Returns the number of trajectories to collect from the actors at a time.

    Without a replay buffer, the trajectories form a batch. With a replay buffer, they form a round in deterministic
    mode. Otherwise the number is 1, because every rollout goes into the buffer on arrival.

    Args:
        settings: The settings of the run.
        spaces: The environment's spaces.
        n_actors: The number of actors.

    Raises:
        ConfigurationError: The mode is deterministic, and the environment has several substeps.
    """
    if not learns_from_replay(settings):
        return batch_size(settings, spaces)
    return n_actors * trajectories_of_an_actor(spaces, settings.envs_per_actor) if settings.deterministic else 1


def _discount(settings: LearnerSettings) -> float:
    """Returns the discount for the buffer's n-step transitions."""
    if is_own(settings.algorithm):
        return float(settings.algorithm_kwargs.get("discount", _DISCOUNT))
    return float(_algorithm_settings(settings).discount)


def _algorithm_settings(settings: LearnerSettings) -> Any:  # noqa: ANN401 - each algorithm has a class of its own
    return getattr(settings, settings.algorithm)
