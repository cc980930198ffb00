"""Refuses impossible combinations of settings."""

from rollcast.actor.policies.heads import Q_HEADS
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.defaults import if_default
from rollcast.learner.algorithms.minibatches import check_minibatch_steps, items_in_minibatch
from rollcast.learner.algorithms.ppo_settings import ClippedSurrogateSettings
from rollcast.learner.queueing.slot_order import actors_in_step, trajectories_of_an_actor
from rollcast.learner.ranks.rank_info import RankInfo
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_parts import batch_size, evaluation_may_decide, evaluation_schedule, plays_in_rounds
from rollcast.services.address import parse_listening_address, parse_web_address
from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import MAX_POLICY_BYTES
from rollcast.services.server.binding import check_bindable
from rollcast.services.settings.new_files import check_new_file


def check_settings(settings: LearnerSettings) -> None:
    """Checks the settings, before any part of the run is made.

    Raises:
        ConfigurationError: Two settings exclude each other.
    """
    if settings.deterministic:
        _check_deterministic(settings)
    if settings.durable:
        _check_durable(settings)
    own = getattr(settings, settings.algorithm, None)
    is_recurrent = settings.recurrence != "none"
    if isinstance(own, ClippedSurrogateSettings) and is_recurrent and own.minibatch_steps is not None:
        items_in_minibatch(own.minibatch_steps, settings.n_rollout_steps, algorithm=settings.algorithm)
    _check_evaluation(settings)


def check_places(settings: LearnerSettings, *, is_first: bool = True) -> None:
    """Checks that a run's places are free, before an environment is made and before any output.

    Other processes may still take these places. The run then fails when it opens them.

    Args:
        settings: The settings.
        is_first: False: another rank makes the directory.

    Raises:
        AddressInUseError: Another process uses an address.
        ConfigurationError: An address cannot be bound for another reason, the directory already exists, or the summary
            cannot be written.
    """
    check_new_file(settings.summary_json, "--summary-json", is_renamed=False)
    if is_first and settings.resume is None and settings.run_dir is not None:
        RunDirectory(settings.run_dir).check_new()
    if not isinstance(settings, TrainSettings) or settings.actor_kind != "sequential":
        check_bindable(parse_listening_address(settings.address))
    if isinstance(settings, TrainSettings) and settings.serve_environments is not None:
        check_bindable(parse_listening_address(settings.serve_environments))
    if settings.metrics_address is not None:
        check_bindable(parse_web_address(settings.metrics_address))


def check_on_policy(settings: LearnerSettings, algorithm: Algorithm) -> None:
    """Checks that actors can play every batch with the previous update's policy, if the algorithm requires it.

    Raises:
        ConfigurationError: A setting excludes this.
    """
    if not algorithm.on_policy:
        return
    name, spaces = f"--algorithm {settings.algorithm}{if_default(settings)}", algorithm.policy.spaces
    if len(spaces) > 1:
        raise ConfigurationError(
            f"{name} in an environment with the substeps {sorted(spaces)}; expected one, so that a batch has all "
            "rollouts of a policy; choose --algorithm appo or impala, or let the agents share a policy"
        )
    if settings.updates_per_broadcast != 1:
        raise ConfigurationError(
            f"{name} with --updates-per-broadcast {settings.updates_per_broadcast}; expected 1: each batch is "
            "collected with the policy of the previous update; leave it out, or choose --algorithm appo or impala"
        )
    if settings.max_policy_lag:
        raise ConfigurationError(
            f"{name} with --max-policy-lag {settings.max_policy_lag}; expected none: this algorithm never learns from "
            "an older policy; leave it out, or choose --algorithm appo or impala"
        )
    if settings.durable:
        raise ConfigurationError(
            f"--durable with {name}; expected one of the two: acknowledged rollouts of a killed learner are of an "
            "older policy, and could not be used again; leave --durable out, or choose "
            "--algorithm appo or impala"
        )
    (substep,) = spaces.values()
    n_trajectories = settings.envs_per_actor * substep.n_agents
    if batch_size(settings, spaces) % n_trajectories:
        raise ConfigurationError(
            f"--batch-size: {settings.batch_size} with {name} and actors whose rollouts have {n_trajectories} "
            "trajectories (--envs-per-actor, times agents); expected a multiple, because the rest of a rollout "
            "is too old for the next batch; change one of them, or choose --algorithm appo or impala"
        )


def check_evaluation(settings: LearnerSettings, algorithm: Algorithm) -> None:
    """Checks that evaluations can draw actions, and have opponents, if the settings ask for these.

    Raises:
        ConfigurationError: The policy takes the action of the highest value, or there can be no opponents.
    """
    if settings.eval_opponents is not None:
        if sum(substep.n_agents for substep in algorithm.policy.spaces.values()) < 2:
            raise ConfigurationError(
                f"--eval-opponents {settings.eval_opponents} in an environment with 1 agent; expected several "
                "agents, which play against each other; leave it out"
            )
        n_bytes = sum(array.nbytes for array in algorithm.policy.state_arrays().values())
        # One file has the policy, the first one and the earlier ones.
        if n_bytes * (settings.eval_opponents + 2) > MAX_POLICY_BYTES:
            raise ConfigurationError(
                f"--eval-opponents {settings.eval_opponents} with a policy of {n_bytes:,} bytes; expected at most "
                f"{max(MAX_POLICY_BYTES // n_bytes - 2, 0)}: all are sent together, in {MAX_POLICY_BYTES:,} bytes; "
                "choose fewer"
            )
        if settings.eval_actions == "both":
            raise ConfigurationError(
                f"--eval-opponents {settings.eval_opponents} with --eval-actions both; expected likeliest or drawn: a "
                "policy has one rating; choose one"
            )
    if settings.eval_actions != "likeliest" and algorithm.policy.spec.head in Q_HEADS:
        raise ConfigurationError(
            f"--eval-actions: {settings.eval_actions!r} with --algorithm {settings.algorithm}, whose policy takes the "
            "action of the highest value and has no distribution to draw from; expected 'likeliest'; leave it out"
        )


def check_batches(settings: LearnerSettings, algorithm: Algorithm) -> None:
    """Checks that actors or a replay buffer can provide the algorithm's batches.

    Raises:
        ConfigurationError: A setting excludes this.
    """
    spaces = algorithm.policy.spaces
    own = getattr(settings, settings.algorithm, None)
    if isinstance(own, ClippedSurrogateSettings):
        n_steps = batch_size(settings, spaces) * settings.n_rollout_steps
        check_minibatch_steps(own.minibatch_steps, n_steps, algorithm=settings.algorithm)
    if settings.deterministic and (algorithm.learns_from_replay or _is_sequential(settings)):
        trajectories_of_an_actor(spaces, settings.envs_per_actor)
    elif settings.deterministic:
        actors_in_step(spaces, batch_size(settings, spaces), settings.envs_per_actor)
    if algorithm.learns_from_replay:
        _check_replay(settings, algorithm)


def _check_replay(settings: LearnerSettings, algorithm: Algorithm) -> None:
    replay, entry = settings.replay, algorithm.replay_entry
    if entry not in (None, replay.entry):
        raise ConfigurationError(
            f"--replay.entry: {replay.entry!r} with --algorithm {settings.algorithm}, which learns from {entry}; "
            f"expected {entry!r}; leave --replay.entry out"
        )
    is_sequential = _is_sequential(settings)
    if is_sequential and replay.samples_per_insert is None and replay.max_times_sampled is None:
        raise ConfigurationError(
            "--actor-kind sequential with a replay buffer and without --replay.samples-per-insert; expected a number: "
            "this number decides after how many samples the actors in the learner's thread continue; set it, or "
            "choose --actor-kind subprocess"
        )


def check_batch_ahead(settings: LearnerSettings, algorithm: Algorithm) -> None:
    """Checks that batches can be assembled ahead, if the settings require it.

    Raises:
        ConfigurationError: Rollouts cannot arrive ahead of time, or could become stale in a batch.
    """
    if settings.batch_ahead != "on":
        return
    is_sequential = _is_sequential(settings)
    has_several = len(algorithm.policy.spaces) > 1
    reasons = {
        "--deterministic: actors play in step, and no rollout arrives before the next policy": settings.deterministic,
        "--actor-kind sequential: actors do not play while the learner learns": is_sequential,
        f"--algorithm {settings.algorithm}{if_default(settings)}, which learns only from the newest policy's "
        "rollouts: none arrives before it": algorithm.on_policy,
        f"--algorithm {settings.algorithm}, which draws its batches from a replay buffer": algorithm.learns_from_replay,
        f"--max-policy-lag {settings.max_policy_lag} and several substeps: stale trajectories cannot be removed from "
        "several batches": has_several and settings.max_policy_lag is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ConfigurationError(
                f"--batch-ahead on with {reason}; expected rollouts that arrive while the trainer learns; choose "
                f"--batch-ahead auto, or off{'; or choose --algorithm appo or impala' if algorithm.on_policy else ''}"
            )


def check_rank_settings(settings: ServingSettings, place: RankInfo) -> None:
    """Checks that several ranks can train with these settings, before any part of the run is made.

    Raises:
        ConfigurationError: A setting excludes several ranks.
    """
    for option, is_given, expected, advice in (
        (
            "--deterministic",
            settings.deterministic,
            "one of the two: ranks take the rollouts that have arrived by their deadlines",
            "leave --deterministic out, or train with one rank",
        ),
        (
            "--cuda-graphs on",
            settings.cuda_graphs == "on",
            "auto or off: CUDA graphs are not tested with several ranks",
            "leave it out",
        ),
        (
            f"--ingest-processes {settings.ingest_processes}",
            settings.ingest_processes > 0,
            "0: each rank takes its own actors",
            "leave it out, or train with one rank",
        ),
        (
            "--spaces-from first_actor",
            settings.spaces_from == "first_actor",
            "--spaces-from environment: actors join only one of the ranks first",
            "install the environment where the learners run",
        ),
    ):
        if is_given:
            raise ConfigurationError(f"{option} with {place.n_ranks} ranks; expected {expected}; {advice}")


def check_actors_resume(settings: LearnerSettings, actors: DistributedActors) -> None:
    """Checks that the actors of a resumed run can continue from its checkpoint.

    Raises:
        ConfigurationError: The run is deterministic, and its kind of actors cannot resume in step.
    """
    if settings.deterministic and not actors.resumes_in_step:
        raise ConfigurationError(
            "--resume with --deterministic, and actors in other processes; expected --actor-kind sequential: other "
            "kinds cannot resume in step; begin another run"
        )


def _check_deterministic(settings: LearnerSettings) -> None:
    if settings.policy_rounding != "none":
        raise ConfigurationError(
            f"--policy-rounding {settings.policy_rounding} with --deterministic; expected none: a deterministic run "
            "is compared bit by bit, so its weights are not rounded; leave one of the two out"
        )
    if plays_in_rounds(settings):
        if settings.replay.samples_per_insert is None:
            raise ConfigurationError(
                "--deterministic with a replay buffer and without --replay.samples-per-insert; expected a number, "
                "because the updates between two rounds of the actors follow from it; set it"
            )
    elif settings.updates_per_broadcast != 1:
        raise ConfigurationError(
            f"--deterministic with --algorithm {settings.algorithm} and --updates-per-broadcast "
            f"{settings.updates_per_broadcast}; expected 1: each actor collects one rollout for each published "
            "policy, and these rollouts make a batch; leave it out"
        )


def _check_evaluation(settings: LearnerSettings) -> None:
    if settings.eval_interval_s is not None and settings.eval_interval_steps is not None:
        raise ConfigurationError(
            f"--eval-interval-s {settings.eval_interval_s:g} with --eval-interval-steps "
            f"{settings.eval_interval_steps}; expected one of the two; leave the other out"
        )
    given = {"--stop-on eval": settings.stop_on == "eval", "--eval-patience": settings.eval_patience is not None}
    if settings.eval_opponents is not None and evaluation_schedule(settings) is None:
        raise ConfigurationError(
            f"--eval-opponents {settings.eval_opponents} without an evaluation; expected --eval-interval-s or "
            "--eval-interval-steps; set one, or leave --eval-opponents out"
        )
    for option, is_given in given.items():
        if is_given and evaluation_schedule(settings) is None:
            raise ConfigurationError(
                f"{option} without an evaluation; expected --eval-interval-s or --eval-interval-steps; set one, "
                f"or leave {option} out"
            )
        if is_given and not evaluation_may_decide(settings):
            raise ConfigurationError(
                f"{option} with --deterministic; expected evaluations by --eval-interval-steps, and --actor-kind "
                "sequential: otherwise the clock decides after which update training ends; leave one of the two out"
            )


def _check_durable(settings: LearnerSettings) -> None:
    if _is_sequential(settings):
        raise ConfigurationError(
            "--durable with --actor-kind sequential; expected subprocess: sequential actors die with the learner, "
            "which acknowledges no rollout to them; leave one of the two out"
        )
    if settings.deterministic:
        raise ConfigurationError(
            "--durable with --deterministic; expected one of the two: actors in step cannot resume a run, so the "
            "acknowledged rollouts could not be used again; leave one out"
        )


def _is_sequential(settings: LearnerSettings) -> bool:
    """Returns whether actors play one after another in the trainer's thread."""
    return isinstance(settings, TrainSettings) and settings.actor_kind == "sequential"
