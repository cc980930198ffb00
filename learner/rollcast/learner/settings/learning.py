"""The settings that `train` and `learner` share. Imports neither torch nor grpc."""

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, ValidationError

from rollcast.actor.settings import EnvironmentSettings, EnvsPerActor
from rollcast.learner.algorithms.appo_settings import AppoSettings
from rollcast.learner.algorithms.defaults import (
    ALGORITHM_DEFAULTS,
    DEFAULT_ALGORITHM,
    FORMER_DEFAULT,
    check_algorithm,
    foreign_groups,
    if_default,
    readers_of,
    with_algorithm_defaults,
)
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.learner.algorithms.r2d2_settings import R2d2Settings
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.settings.computing import ComputingSettings
from rollcast.services.errors import ConfigurationError
from rollcast.services.joining.evaluation import EvalActions
from rollcast.services.limits.limits import (
    MAX_EVALUATION_EPISODES,
    MAX_EVALUATION_OPPONENTS,
    MAX_FRAME_STACK,
    MAX_HIDDEN_LAYERS,
    MAX_RECURRENT_SIZE,
)
from rollcast.services.limits.settings import ServerLimitSettings, TimeoutSeconds
from rollcast.services.metrics.settings import MetricsSettings
from rollcast.services.policies.policies import MAX_OBSERVATION_CLIP, Activation, Recurrence
from rollcast.services.security.settings import ServerSecuritySettings
from rollcast.services.server.settings import AnnouncementSettings
from rollcast.services.settings.addresses import ListeningAddress
from rollcast.services.settings.command_line import HELP
from rollcast.services.settings.help_text import HelpScope
from rollcast.services.settings.numbers import AtLeastOne, Seed
from rollcast.services.settings.options import variable_name
from rollcast.services.settings.origins import Origins
from rollcast.services.settings.recipes import recipe_given, recipe_names
from rollcast.services.settings.resume_rules import ACTING, FREE, LEARNING, stays
from rollcast.services.settings.setting import setting
from rollcast.services.settings.settings import EntryPointKwargs, LogLevel, describe_validation_error

# The options that the help shows first; of the algorithms' own options, only those of the chosen one.
FIRST_OF_LEARNING: Final = (
    *("total_steps", "stop_return", "seed", "run_dir", "resume", "algorithm", "recipe"),
    *("impala.learning_rate", "impala.discount", "impala.entropy_cost", "impala.reward_scale"),
    *("ppo.learning_rate", "ppo.n_epochs", "ppo.minibatch_steps", "ppo.entropy_cost", "ppo.discount"),
    *("appo.learning_rate", "appo.n_epochs", "appo.minibatch_steps", "appo.entropy_cost", "appo.discount"),
    *("sac.policy_learning_rate", "sac.critic_learning_rate", "sac.discount"),
    *("dqn.learning_rate", "dqn.discount", "dqn.epsilon"),
    *("r2d2.learning_rate", "r2d2.discount", "r2d2.epsilon"),
    *("replay.capacity", "replay.samples_per_insert", "n_rollout_steps", "batch_size", "envs_per_actor"),
    *("network", "hidden_sizes", "recurrence", "device"),
)

# More steps in an update teach little more: with 512 environments, PPO solves CartPole in half of the steps with
# rollouts of 32 as with rollouts of 128. See `benchmarks/pages/tasks.md`.
_MOST_BATCH_STEPS: Final = 16_384

# The shortest default rollouts of the algorithms that learn from fresh ones. Environments that began together are in
# the same part of an episode, and a short rollout has only that part. IMPALA, with an update for every half of the
# actors, then forgets the other parts: with 2,048 environments, rollouts of 16 take twice as long as rollouts of 32.
_LEAST_ROLLOUT_STEPS: Final = {"impala": 32, "ppo": 8, "appo": 8}

# An episode of CartPole lasts 500 steps, and a run needs some after the policy is good.
_LEAST_STEPS_OF_AN_ENVIRONMENT: Final = 2_000


class LearnerSettings(
    EnvironmentSettings,
    ServerSecuritySettings,
    AnnouncementSettings,
    ServerLimitSettings,
    MetricsSettings,
    ComputingSettings,
):
    """The settings that `train` and `learner` share."""

    address: ListeningAddress = setting(
        "localhost:50051", "The address to listen on: host:port (port 0: any free port) or unix:/path.", FREE
    )
    algorithm: Annotated[str, AfterValidator(check_algorithm)] = setting(
        DEFAULT_ALGORITHM,
        "The algorithm: impala, ppo, appo, sac, dqn, r2d2, or package.module:factory for your own. Options you do not "
        "set use the algorithm's defaults; --algorithm sac --help shows those of SAC.",
        stays("the checkpoint is of that algorithm"),
        examples=list(ALGORITHM_DEFAULTS),
    )
    algorithm_kwargs: EntryPointKwargs = setting(
        {}, "Keyword arguments for your own algorithm, as JSON: '{\"learning_rate\": 0.001}'.", LEARNING
    )
    recipe: str | None = setting(
        None,
        "A recipe: tuned settings for a task, which replace the defaults. rollcast recipes lists them. Default: none.",
        FREE,
        examples=list(recipe_names()),
    )
    impala: ImpalaSettings = Field(default_factory=ImpalaSettings, description="Settings of IMPALA.")
    ppo: PpoSettings = Field(default_factory=PpoSettings, description="Settings of PPO.")
    appo: AppoSettings = Field(default_factory=AppoSettings, description="Settings of APPO.")
    sac: SacSettings = Field(default_factory=SacSettings, description="Settings of SAC.")
    dqn: DqnSettings = Field(default_factory=DqnSettings, description="Settings of DQN.")
    r2d2: R2d2Settings = Field(default_factory=R2d2Settings, description="Settings of R2D2.")
    replay: ReplaySettings = Field(
        default_factory=ReplaySettings,
        description="The replay buffer of SAC, DQN, R2D2 and your own off-policy algorithm.",
    )
    initial_data: Path | None = setting(
        None,
        "A file of rollouts, written by rollcast record, that fills the replay buffer before training. If it has "
        "fewer entries than --replay.min-size, actors add entries with random actions. Default: actors fill the "
        "buffer with random actions.",
        stays("it fills the replay buffer of a new run"),
    )
    initial_policy: Path | None = setting(
        None,
        "Start a new run with the weights of another run: its folder, or a policy file. From a folder, the run takes "
        "the last policy, and with the same algorithm also the critics. Spaces and network must match. Default: "
        "random weights.",
        stays("it has an effect only at the start of a run"),
    )
    network: str = setting(
        "auto",
        "The policy network: auto (an MLP for vectors, the Nature CNN for images), mlp (flattens images), "
        "nature_cnn, impala_shallow, impala_resnet, or package.module:factory. rollcast calls the factory with the "
        "observation space and the number of outputs. Start actors with the same --network, if it is your own.",
        stays("the checkpoint has the weights of that network"),
    )
    hidden_sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=MAX_HIDDEN_LAYERS)] = setting(
        (64, 64), "Units of each hidden layer of the MLP.", stays("the checkpoint has weights of these sizes")
    )
    activation: Activation = setting(
        "tanh", "Activation function of the MLP.", stays("the checkpoint's weights were learnt with it")
    )
    recurrence: Recurrence = setting(
        "none",
        "The recurrent layer, between the hidden layers and the outputs: lstm or gru, for environments in which one "
        "observation does not show the whole state. For impala, ppo, appo and r2d2, with rollcast's own networks.",
        stays("the checkpoint has the weights of that recurrent layer"),
    )
    recurrent_size: Annotated[int, Field(ge=1, le=MAX_RECURRENT_SIZE)] = setting(
        64, "Units of the recurrent layer.", stays("the checkpoint has weights of that size")
    )
    normalize_observations: bool = setting(
        False,
        "Normalise observations, the Box leaves of floats, by their running mean and standard deviation. Both are "
        "part of each policy version, so actors, evaluate and Act use them.",
        stays("the checkpoint's weights were learnt with it"),
    )
    observation_clip: Annotated[float, Field(gt=0, le=MAX_OBSERVATION_CLIP)] = setting(
        10.0,
        "Clip normalised observations to this many standard deviations, above 0.",
        stays("the checkpoint's weights were learnt with it"),
    )
    frame_stack: Annotated[int, Field(ge=1, le=MAX_FRAME_STACK)] = setting(
        1,
        "K: the policy sees the last K frames at once, as with gymnasium's FrameStackObservation. The environment "
        "gives single frames; actors and the learner stack them. Rollouts and replay buffers store each frame once.",
        stays("the checkpoint's weights were learnt with it"),
    )
    n_rollout_steps: AtLeastOne = setting(
        64,
        "T: environment steps in a rollout. With many environments, rollouts of PPO and APPO are shorter by default, "
        "down to 8 steps (IMPALA: 32), if a batch would have more than 16,384. With --recurrence they are not.",
        stays("rollouts that wait in the log or the replay buffer, and actors that reconnect, have that length"),
    )
    envs_per_actor: EnvsPerActor = setting(
        8,
        "Environments that an actor steps at once, in one batched forward pass. An actor on another machine may set "
        "another number.",
        ACTING,
    )
    batch_size: AtLeastOne | None = setting(
        None,
        "B: trajectories in a batch, each of one agent of one environment; with a replay buffer, entries in a batch. "
        "Default: one rollout from each environment of all actors, at least 16; with IMPALA, of half of them, at least "
        "4; with DQN 128 entries, R2D2 16, SAC 256. rollcast learner does not know how many actors will come, and "
        "assumes a batch from two. A run prints its batch size at the start.",
        LEARNING,
    )
    updates_per_broadcast: AtLeastOne = setting(1, "Updates between two published policy versions.", LEARNING)
    policy_rounding: Literal["none", "bfloat16"] = setting(
        "none",
        "Rounding of published weights, for actors, evaluators, Act and saved policies. bfloat16: round to 8 "
        "significant bits; --policy-encoding delta then sends far less. Training and checkpoints keep float32.",
        LEARNING,
    )
    queue_out_of_sync_factor: PositiveFloat = setting(
        1.0,
        "Capacity of the rollout queue as a multiple of batch_size. A smaller queue contains fresher rollouts.",
        LEARNING,
    )
    max_policy_lag: NonNegativeInt | None = setting(
        None,
        "Drop rollouts whose policy is more than this many versions old, and count their trajectories as "
        "stale. Default: drop none.",
        LEARNING,
    )
    bounded_staleness: bool = setting(
        False,
        "Make actors wait for the newest policy before each rollout. If actors are equally fast, no rollout is "
        "then more than ceil(queue_out_of_sync_factor + n_actors * envs_per_actor / batch_size) versions old.",
        LEARNING,
    )
    deterministic: bool = setting(
        False,
        "Compute a bit-identical policy from the same seeds. Processors must have the same maker and instruction "
        "set, and torch and numpy the same versions. Actors play in step with the updates, in the order of their "
        "slots, and arithmetic uses one thread. IMPALA, PPO and APPO take one rollout of every actor for each batch. "
        "So batch_size must be a multiple of envs_per_actor (times agents). With a replay buffer, actors play in "
        "rounds of one rollout each. The number of updates after a round depends on --replay.samples-per-insert; "
        "--updates-per-broadcast has no effect. rollcast learner waits for --max-actors actors.",
        stays("a run is deterministic from its first step on, or not at all"),
    )
    total_steps: AtLeastOne = setting(
        20_000_000,
        "Environment steps after which training ends; with several agents, each agent's steps count. The default of "
        "PPO and APPO grows to 2,000 for each environment, so that long episodes end.",
        ACTING,
    )
    stop_return: float | None = setting(
        None,
        "End training at this mean return: over 100 episodes, or of an evaluation (see --stop-on). Default: the "
        "environment's reward threshold, if it has one.",
        FREE,
    )
    eval_interval_s: PositiveFloat | None = setting(
        None,
        "Seconds between two evaluations of the newest policy, during training. Default: no evaluation by time.",
        FREE,
    )
    eval_interval_steps: AtLeastOne | None = setting(
        None,
        "Environment steps between two evaluations, instead of seconds. Default: no evaluation by steps.",
        FREE,
    )
    eval_episodes: Annotated[int, Field(ge=1, le=MAX_EVALUATION_EPISODES)] = setting(
        10,
        "Episodes of an evaluation, with the same seeds for each policy. rollcast evaluate plays the same episodes "
        "with the run's seed.",
        FREE,
    )
    eval_actions: EvalActions = setting(
        "likeliest",
        "Actions of an evaluation. likeliest: greedy actions. drawn: actions sampled from the policy, as in training. "
        "Use drawn if greedy actions repeat without end. both: twice the episodes, and the better mean return counts.",
        FREE,
    )
    eval_opponents: Annotated[int, Field(ge=1, le=MAX_EVALUATION_OPPONENTS - 2)] | None = setting(
        None,
        "For games of several agents: evaluate against random actions, the first policy, and this many of the newest "
        "evaluated policies. The policy plays --eval-episodes games against each opponent. The evaluation's mean "
        "return is then the Elo rating above random play. Default: the newest policy plays all agents.",
        FREE,
    )
    eval_patience: AtLeastOne | None = setting(
        None,
        "End training after this many evaluations in a row without a better mean return. Default: never.",
        FREE,
    )
    stop_on: Literal["eval", "train"] | None = setting(
        None,
        "The mean return to compare with --stop-return. eval: of the newest evaluation; train: of the last 100 "
        "training episodes. Default: eval if the run evaluates policies, else train. A deterministic run uses eval "
        "only with --eval-interval-steps and sequential actors.",
        FREE,
    )
    seed: Seed = setting(
        0,
        "The seed of the run, from which the seeds of networks, environments and sampled actions derive.",
        stays("all random numbers so far derive from it"),
    )
    run_dir: Path | None = setting(
        None, "A new folder for the run's output. Default: a folder below runs/, named after the run.", FREE
    )
    summary_json: Path | None = setting(
        None,
        "Write the summary of the run to this file when training ends, with the policy lag of the whole run. "
        "Default: no file.",
        FREE,
    )
    log_interval_s: PositiveFloat = setting(
        2.0,
        "Seconds between two records of metrics. Losses, policy lag and waits cover the time since the last record.",
        FREE,
    )
    checkpoint_interval_s: PositiveFloat = setting(300.0, "Seconds between two checkpoints.", FREE)
    checkpoint_interval_updates: AtLeastOne | None = setting(
        None,
        "Updates between two checkpoints, instead of seconds. With sequential actors, a resumed run is then "
        "bit-identical to an uninterrupted one. Default: use seconds.",
        ACTING,
    )
    keep_checkpoints: AtLeastOne = setting(
        3, "Number of newest checkpoints to keep, besides the one with the highest mean return.", FREE
    )
    stop_timeout_s: TimeoutSeconds = setting(
        600.0,
        "Seconds that the last checkpoint of a stopped run may take. After that, the run ends with the previous "
        "checkpoint. Choose a value below the grace period of your container engine.",
        FREE,
    )
    durable: bool = setting(
        False,
        "Write every rollout to a log in the run's folder before acknowledging it. A learner that is killed and "
        "resumed then loses no acknowledged rollout. For actors in other processes; not with ppo.",
        FREE,
    )
    durable_max_bytes: Annotated[int, Field(ge=1 << 20)] = setting(
        8 << 30,
        "Largest size of the log of --durable, in bytes. When it is half full, the learner writes a checkpoint early; "
        "when it is full, actors wait.",
        FREE,
    )
    resume: str | None = setting(
        None,
        "Resume the run in this folder, with its settings. auto: resume the newest run with the same settings (in "
        "--run-dir if given), else start a new run. Default: start a new run.",
        FREE,
    )
    collect_timeout_s: TimeoutSeconds = setting(
        600.0,
        "Seconds without a rollout after which training fails, unless an actor is playing one; the error names the "
        "missing actors.",
        FREE,
    )
    track: Literal["wandb", "trackio", "mlflow"] | None = setting(
        None,
        "Also write metrics and settings to an experiment tracker: wandb, trackio or mlflow. Each needs the extra of "
        "its name. Set the account and the destination with the tracker's own variables (WANDB_MODE=offline, "
        "TRACKIO_SPACE_ID, MLFLOW_TRACKING_URI). A resumed run continues the same run of the tracker. Default: none.",
        FREE,
    )
    track_project: str = setting("rollcast", "The project, or experiment, under which the tracker lists the run.", FREE)
    log_level: LogLevel = setting("WARNING", "Least severe messages to log, on stderr.", FREE)

    @classmethod
    def preset(cls, origins: Origins) -> Mapping[str, Any]:
        """Returns the settings of the named recipe, if any, and the entries of the algorithm's buffer.

        Settings of a replay buffer are checked together, and their valid combinations depend on its entries.

        Raises:
            ConfigurationError: The recipe does not exist.
        """
        values = recipe_given(origins)
        algorithm = origins.value_of("algorithm") or values.get("algorithm")
        replay = ALGORITHM_DEFAULTS.get(str(algorithm), {}).get("replay", {})
        return _joined({"replay": {"entry": replay["entry"]}}, values) if "entry" in replay else values

    @classmethod
    def help_scope(cls, origins: Origins) -> HelpScope:
        """Returns the options and the defaults of the chosen algorithm."""
        algorithm = origins.value_of("algorithm") or cls.model_fields["algorithm"].default
        others = [name for name in ALGORITHM_DEFAULTS if name != algorithm]
        return HelpScope(
            hidden=tuple(sorted(foreign_groups(str(algorithm)))),
            defaults={**_joined(ALGORITHM_DEFAULTS.get(str(algorithm), {}), origins.preset), "algorithm": algorithm},
            note=f"These options and defaults are for {algorithm}. For others: --algorithm {'|'.join(others)} {HELP}",
        )

    def completed(self, origins: Origins) -> Self:
        """Returns the settings of the run to resume, or these settings with the algorithm's defaults.

        Args:
            origins: The source of each value.

        Raises:
            ConfigurationError: If the command line or the file has options of another algorithm; also as in
                `resumed_settings`.
        """
        settings = with_algorithm_defaults(self, self.algorithm)
        if self.resume is not None:
            try:
                settings = type(self).resumed(settings, self)
            except ConfigurationError as error:
                raise ConfigurationError(f"--resume{origins.describe(['resume'])}: {error}") from error
        if settings.resume is None:
            settings = settings.with_round_defaults(self.model_fields_set)
        _refuse_other_algorithms(settings, origins)
        return settings

    def actors_of_a_batch(self) -> int:
        """Returns how many actors contribute a rollout of each of their environments to a batch, by default."""
        return self.max_actors if self.deterministic else 2  # `rollcast learner` does not know how many will come

    def with_round_defaults(self, given: Set[str]) -> Self:
        """Returns the settings with defaults that follow the number of environments of a batch.

        Args:
            given: The names of the settings from the user, which stay.
        """
        if self.algorithm not in _LEAST_ROLLOUT_STEPS:
            return self
        n_envs = self.envs_per_actor * self.actors_of_a_batch()
        update: dict[str, int] = {}
        if not given & {"n_rollout_steps", "batch_size"} and self.recurrence == "none":
            longest = max(_LEAST_ROLLOUT_STEPS[self.algorithm], _MOST_BATCH_STEPS // n_envs)
            update["n_rollout_steps"] = min(self.n_rollout_steps, longest)
        if "total_steps" not in given:
            update["total_steps"] = max(self.total_steps, _LEAST_STEPS_OF_AN_ENVIRONMENT * n_envs)
        return self.model_copy(update=update)

    @classmethod
    def resumed(cls, settings: Self, given: Self) -> Self:
        """Returns the settings of the run to resume.

        Args:
            settings: The given settings, with defaults.
            given: The given settings.

        Raises:
            ConfigurationError: As in `resumed_settings`, or if the run's settings are not valid.
        """
        # imported here: numpy and safetensors, which only a resumed run needs before the command starts
        from rollcast.learner.checkpoints.resuming import resumed_settings

        def follow(settings: Self) -> Self:
            return settings.with_round_defaults(given.model_fields_set)

        try:
            values = resumed_settings(settings, given, for_sizes=follow)
            if values["resume"] is None and "algorithm" not in given.model_fields_set:
                # a run that was begun when another algorithm was the default
                former = with_algorithm_defaults(given.model_copy(update={"algorithm": FORMER_DEFAULT}), FORMER_DEFAULT)
                found = resumed_settings(former, given, for_sizes=follow)
                values = values if found["resume"] is None else found
            return cls.model_validate({"algorithm": FORMER_DEFAULT, **values})
        except ValidationError as error:
            raise ConfigurationError(
                f"the settings of the run {settings.resume} are not valid: "
                f"{describe_validation_error(error, cls)}; expected an unchanged settings.yaml; restore it"
            ) from error


def _joined(defaults: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults, overridden by the values of a preset, also in nested groups."""
    joined = {**defaults, **preset}
    for name in defaults.keys() & preset.keys():
        if isinstance(defaults[name], Mapping):
            joined[name] = _joined(defaults[name], preset[name])
    return joined


def _refuse_other_algorithms(settings: LearnerSettings, origins: Origins) -> None:
    """Refuses options of other algorithms, because they would have no effect.

    Left-over environment variables pass, except those of the default algorithm if no algorithm is chosen. Defaults in a
    file also pass, because a run's settings.yaml has all settings.

    Raises:
        ConfigurationError: If the command line, the file or the recipe has such an option.
    """
    lines = []
    told = f"the algorithm is {settings.algorithm!r}{if_default(settings)}, which does not use it"
    for group in sorted(foreign_groups(settings.algorithm)):
        expected = f"expected options of {settings.algorithm}; leave it out, or choose --algorithm {readers_of(group)}"
        for option in origins.options_in((group,)):
            lines.append(f"{option}: {told}; {expected}")
        if group == FORMER_DEFAULT and "algorithm" not in settings.model_fields_set:
            variables = (name for name in origins.variables() if name.startswith(f"{variable_name((group,))}__"))
            lines.extend(f"{variable}: {told}; {expected}" for variable in sorted(variables))
        kind = type(getattr(settings, group))
        for source, values in ((repr(str(origins.file)), origins.from_file), ("the recipe", origins.preset)):
            if group in values and kind.model_validate(values[group]) != kind():
                lines.append(f"{group} (from {source}): {told}; {expected}")
    if lines:
        raise ConfigurationError("\n".join(lines))
