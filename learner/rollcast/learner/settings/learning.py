"""The settings that `train` and `learner` share. Imports neither torch nor grpc."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError

from rollcast.actor.settings import EnvironmentSettings, EnvsPerActor
from rollcast.learner.algorithms.defaults import (
    ALGORITHM_DEFAULTS,
    check_algorithm,
    foreign_groups,
    readers_of,
    with_algorithm_defaults,
)
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import MAX_HIDDEN_LAYERS
from rollcast.services.limits.settings import ServerLimitSettings, TimeoutSeconds
from rollcast.services.policies.policies import Activation
from rollcast.services.security.settings import ServerSecuritySettings
from rollcast.services.settings.command_line import HELP
from rollcast.services.settings.help_text import HelpScope
from rollcast.services.settings.origins import Origins
from rollcast.services.settings.resume_rules import ACTING, FREE, LEARNING, stays
from rollcast.services.settings.settings import EntryPointKwargs, LogLevel, describe_validation_error

# The options that the help shows first; of the algorithms' own options, only those of the chosen one.
FIRST_OF_LEARNING: Final = (
    *("total_steps", "stop_return", "seed", "run_dir", "resume", "algorithm"),
    *("impala.learning_rate", "impala.discount", "impala.entropy_cost", "impala.reward_scale"),
    *("sac.policy_learning_rate", "sac.critic_learning_rate", "sac.discount"),
    *("dqn.learning_rate", "dqn.discount", "dqn.epsilon"),
    *("replay.capacity", "replay.samples_per_insert", "n_rollout_steps", "batch_size", "envs_per_actor"),
    *("network", "hidden_sizes", "device"),
)


class LearnerSettings(EnvironmentSettings, ServerSecuritySettings, ServerLimitSettings):
    """The settings that `train` and `learner` share."""

    address: str = Field(
        "localhost:50051",
        description="The address to listen on: host:port (port 0: any free port) or unix:/path.",
        json_schema_extra=FREE,
    )
    algorithm: Annotated[str, AfterValidator(check_algorithm)] = Field(
        "impala",
        description="The algorithm: impala, sac, dqn, or package.module:factory for your own. Options you do not "
        "set use the algorithm's defaults; --algorithm sac --help shows those of SAC.",
        examples=list(ALGORITHM_DEFAULTS),
        json_schema_extra=stays("the checkpoint is of that algorithm"),
    )
    algorithm_kwargs: EntryPointKwargs = Field(
        default_factory=dict,
        description="Keyword arguments for your own algorithm, as JSON: '{\"learning_rate\": 0.001}'.",
        json_schema_extra=LEARNING,
    )
    impala: ImpalaSettings = Field(default_factory=ImpalaSettings, description="Settings of IMPALA.")
    sac: SacSettings = Field(default_factory=SacSettings, description="Settings of SAC.")
    dqn: DqnSettings = Field(default_factory=DqnSettings, description="Settings of DQN.")
    replay: ReplaySettings = Field(
        default_factory=ReplaySettings, description="The replay buffer of SAC, DQN and your own off-policy algorithm."
    )
    initial_data: Path | None = Field(
        None,
        description="A file of rollouts, written by rollcast record, that fills the replay buffer before "
        "training. If it has fewer entries than --replay.min-size, actors add random ones. Default: "
        "actors fill the buffer at random.",
        json_schema_extra=stays("it fills the replay buffer of a new run"),
    )
    initial_policy: Path | None = Field(
        None,
        description="Start a new run with the weights of another: the folder of a run (its last policy, and its "
        "critics if the algorithm is the same) or a policy file. Spaces and network must match. "
        "Default: random weights.",
        json_schema_extra=stays("it says with what a run begins"),
    )
    network: str = Field(
        "auto",
        description="The policy network: auto (an MLP for vectors, the Nature CNN for images), or "
        "package.module:factory, which is called with the observation space and the number of "
        "outputs. Start actors with the same name.",
        json_schema_extra=stays("the checkpoint has the weights of that network"),
    )
    hidden_sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=MAX_HIDDEN_LAYERS)] = Field(
        (64, 64),
        description="Sizes of the hidden layers of the MLP.",
        json_schema_extra=stays("the checkpoint has weights of these sizes"),
    )
    activation: Activation = Field(
        "tanh",
        description="Activation function of the MLP.",
        json_schema_extra=stays("the checkpoint's weights were learnt with it"),
    )
    n_rollout_steps: Annotated[int, Field(ge=1)] = Field(
        64,
        description="T: environment steps in a rollout.",
        json_schema_extra=stays(
            "rollouts that wait in the log or the replay buffer, and actors that come back, have that length"
        ),
    )
    envs_per_actor: EnvsPerActor = Field(
        8,
        description="Environments that an actor steps at once, in one batched forward pass. An actor on another "
        "machine may have its own number.",
        json_schema_extra=ACTING,
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(
        8,
        description="B: rollouts in a batch, each of one environment; with a replay buffer, entries in a batch.",
        json_schema_extra=LEARNING,
    )
    updates_per_broadcast: Annotated[int, Field(ge=1)] = Field(
        1,
        description="Updates after which a new policy is sent to the actors.",
        json_schema_extra=LEARNING,
    )
    queue_out_of_sync_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0,
        description="Capacity of the rollout queue as a multiple of batch_size. A smaller queue holds fresher "
        "rollouts.",
        json_schema_extra=LEARNING,
    )
    max_policy_lag: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Drop rollouts whose policy is more than this many versions old, and count their trajectories "
        "as stale. Default: drop none.",
        json_schema_extra=LEARNING,
    )
    bounded_staleness: bool = Field(
        False,
        description="Make actors wait for the newest policy before each rollout. If actors are equally fast, no "
        "rollout is then more than ceil(queue_out_of_sync_factor + n_actors * envs_per_actor / "
        "batch_size) updates old.",
        json_schema_extra=LEARNING,
    )
    deterministic: bool = Field(
        False,
        description="Make the same seeds give the same policy: actors play in step with the updates, in the order "
        "of their slots, and all arithmetic uses one thread. IMPALA takes one rollout of every actor "
        "for each batch, so batch_size must be a multiple of envs_per_actor (times agents). With a "
        "replay buffer, every actor sends one rollout, then as many updates follow as "
        "--replay.samples-per-insert asks for; --updates-per-broadcast has no effect. rollcast "
        "learner waits for --max-actors actors.",
        json_schema_extra=stays("a run is deterministic from its first step on, or not at all"),
    )
    total_steps: Annotated[int, Field(ge=1)] = Field(
        20_000_000,
        description="Environment steps after which training ends; with several agents, each agent's steps count.",
        json_schema_extra=ACTING,
    )
    stop_return: float | None = Field(
        None,
        description="End training at this mean return over 100 episodes. Default: the environment's reward "
        "threshold, if it has one.",
        json_schema_extra=FREE,
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0,
        description="The seed that all others derive from: networks, environments, sampling of actions.",
        json_schema_extra=stays("everything that was drawn so far came from it"),
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="The device to train on; auto: a GPU if there is one.",
        json_schema_extra=ACTING,
    )
    torch_threads: Annotated[int, Field(ge=0)] = Field(
        0,
        description="CPU threads of torch in the learner; 0: the cores that local actors leave free.",
        json_schema_extra=ACTING,
    )
    run_dir: Path | None = Field(
        None,
        description="A new folder for the run's output. Default: a folder below runs/, named after the run.",
        json_schema_extra=FREE,
    )
    summary_json: Path | None = Field(
        None,
        description="Write the summary of the run to this file when training ends. Default: no file.",
        json_schema_extra=FREE,
    )
    log_interval_s: Annotated[float, Field(gt=0)] = Field(
        2.0,
        description="Seconds between two records of metrics.",
        json_schema_extra=FREE,
    )
    checkpoint_interval_s: Annotated[float, Field(gt=0)] = Field(
        300.0,
        description="Seconds between two checkpoints.",
        json_schema_extra=FREE,
    )
    checkpoint_interval_updates: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Updates between two checkpoints, instead of seconds. With sequential actors, a resumed run "
        "then gives the same bits as an uninterrupted one. Default: use seconds.",
        json_schema_extra=ACTING,
    )
    keep_checkpoints: Annotated[int, Field(ge=1)] = Field(
        3,
        description="Number of newest checkpoints to keep, besides the one with the highest mean return.",
        json_schema_extra=FREE,
    )
    stop_timeout_s: TimeoutSeconds = Field(
        600.0,
        description="Seconds that the last checkpoint of a stopped run may take; after that the run ends with the "
        "checkpoint before. Choose less than the time after which your container engine kills a "
        "stopped container.",
        json_schema_extra=FREE,
    )
    durable: bool = Field(
        False,
        description="Write every rollout to a log in the run's folder before acknowledging it: a learner that is "
        "killed and resumed loses no acknowledged rollout. For actors in other processes only.",
        json_schema_extra=FREE,
    )
    durable_max_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        8 << 30,
        description="Largest size of that log on disk, in bytes. At half of it a checkpoint is made early; when "
        "it is full, actors wait.",
        json_schema_extra=FREE,
    )
    resume: str | None = Field(
        None,
        description="Resume the run in this folder, with its settings. auto: resume the newest run with the same "
        "settings (in --run-dir if given), or start a new one if there is none. Default: start a new "
        "run.",
        json_schema_extra=FREE,
    )
    collect_timeout_s: TimeoutSeconds = Field(
        600.0,
        description="Seconds without a rollout after which training fails; the error names the actors it waited for.",
        json_schema_extra=FREE,
    )
    log_level: LogLevel = Field(
        "WARNING",
        description="Least severe messages to log, on stderr.",
        json_schema_extra=FREE,
    )

    @classmethod
    def help_scope(cls, origins: Origins) -> HelpScope:
        """Returns the options and the defaults of the chosen algorithm."""
        algorithm = origins.value_of("algorithm") or cls.model_fields["algorithm"].default
        others = [name for name in ALGORITHM_DEFAULTS if name != algorithm]
        return HelpScope(
            hidden=tuple(sorted(foreign_groups(str(algorithm)))),
            defaults={**ALGORITHM_DEFAULTS.get(str(algorithm), {}), "algorithm": algorithm},
            note=f"Options and defaults are {algorithm}'s; for others: --algorithm {'|'.join(others)} {HELP}",
        )

    def completed(self, origins: Origins) -> Self:
        """Returns the settings of the run to resume, or these with the algorithm's defaults where none were given.

        Args:
            origins: Where each value comes from.

        Raises:
            ConfigurationError: If the command line or the file has options of another algorithm; and as of
                `resumed_settings`.
        """
        settings = with_algorithm_defaults(self, self.algorithm)
        if self.resume is not None:
            settings = type(self).resumed(settings, self)
        _refuse_other_algorithms(settings, origins)
        return settings

    @classmethod
    def resumed(cls, settings: Self, given: Self) -> Self:
        """Returns the settings of the run to resume.

        Args:
            settings: The settings given, with defaults.
            given: The settings given.

        Raises:
            ConfigurationError: As of `resumed_settings`, or if the run's settings are not valid.
        """
        # imported here: numpy and safetensors, which only a resumed run needs before the command starts
        from rollcast.learner.checkpoints.resuming import resumed_settings

        try:
            return cls.model_validate(resumed_settings(settings, given))
        except ValidationError as error:
            raise ConfigurationError(
                f"--resume: the settings of the run {settings.resume} are not valid: "
                f"{describe_validation_error(error, cls)}; expected its settings.yaml as it was written; restore it"
            ) from error


def _refuse_other_algorithms(settings: LearnerSettings, origins: Origins) -> None:
    """Refuses options of algorithms that are not chosen, because they would change nothing.

    Variables of the environment may be left over and pass. So do defaults in a file: a run's settings.yaml has all.

    Raises:
        ConfigurationError: If the command line has such an option, or the file such a value.
    """
    lines = []
    for group in sorted(foreign_groups(settings.algorithm)):
        expected = f"expected options of {settings.algorithm}; leave it out, or choose --algorithm {readers_of(group)}"
        for option in origins.options_in(group):
            lines.append(f"{option}: the algorithm is {settings.algorithm!r}, which does not use it; {expected}")
        kind = type(getattr(settings, group))
        if group in origins.from_file and kind.model_validate(origins.from_file[group]) != kind():
            lines.append(
                f"{group} (from {str(origins.file)!r}): the algorithm is {settings.algorithm!r}, which does not use "
                f"it; {expected}"
            )
    if lines:
        raise ConfigurationError("\n".join(lines))
