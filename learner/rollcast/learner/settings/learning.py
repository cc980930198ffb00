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
from rollcast.services.limits.settings import ServerLimitSettings
from rollcast.services.policies.policies import Activation
from rollcast.services.security.settings import ServerSecuritySettings
from rollcast.services.settings.command_line import HELP
from rollcast.services.settings.help_text import HelpScope
from rollcast.services.settings.origins import Origins
from rollcast.services.settings.resume_rules import ACTING, FREE, LEARNING, stays
from rollcast.services.settings.settings import EntryPointKwargs, LogLevel, describe_validation_error

# What the help shows first of every learner; of the algorithms' own only those of the one that is chosen.
FIRST_OF_LEARNING: Final = (
    *("total_steps", "stop_return", "seed", "run_dir", "resume", "algorithm"),
    *("impala.learning_rate", "impala.discount", "impala.entropy_cost", "impala.reward_scale"),
    *("sac.policy_learning_rate", "sac.critic_learning_rate", "sac.discount"),
    *("dqn.learning_rate", "dqn.discount", "dqn.epsilon"),
    *("replay.capacity", "replay.samples_per_insert", "n_rollout_steps", "batch_size", "envs_per_actor"),
    *("network", "hidden_sizes", "device"),
)


class LearnerSettings(EnvironmentSettings, ServerSecuritySettings, ServerLimitSettings):
    """How to learn: shared by `train` and `learner`."""

    address: str = Field(
        "localhost:50051",
        description="Where to listen: host:port (port 0: any free one) or unix:/path.",
        json_schema_extra=FREE,
    )
    algorithm: Annotated[str, AfterValidator(check_algorithm)] = Field(
        "impala",
        description="What learns: impala, sac, dqn, or package.module:factory for one's own; the defaults are its own: "
        "--algorithm sac --help shows those of SAC.",
        examples=list(ALGORITHM_DEFAULTS),
        json_schema_extra=stays("the checkpoint is of that algorithm"),
    )
    algorithm_kwargs: EntryPointKwargs = Field(
        default_factory=dict,
        description="Keyword arguments of an algorithm of one's own, as JSON: '{\"learning_rate\": 0.001}'.",
        json_schema_extra=LEARNING,
    )
    impala: ImpalaSettings = Field(default_factory=ImpalaSettings, description="Settings of IMPALA.")
    sac: SacSettings = Field(default_factory=SacSettings, description="Settings of SAC.")
    dqn: DqnSettings = Field(default_factory=DqnSettings, description="Settings of DQN.")
    replay: ReplaySettings = Field(
        default_factory=ReplaySettings, description="The replay buffer of off-policy algorithms."
    )
    initial_data: Path | None = Field(
        None,
        description="Fill the replay buffer from this file of rollouts, which rollcast record writes, instead of "
        "acting at random; where it has fewer entries than --replay.min-size, actors act at random for the rest.",
        json_schema_extra=stays("it fills the replay buffer of a new run"),
    )
    initial_policy: Path | None = Field(
        None,
        description="Begin a new run with the weights of another: a run's folder (its last policy, and its critics if "
        "it has the same algorithm), or the file of a policy. Spaces and network must be the same.",
        json_schema_extra=stays("it says with what a run begins"),
    )
    network: str = Field(
        "auto",
        description="The policy network: auto (an MLP for vectors, the Nature CNN for images, chosen from the space), "
        "or package.module:factory, called with the observation space and the number of outputs. Actors must be "
        "started with the same name.",
        json_schema_extra=stays("the checkpoint has the weights of that network"),
    )
    hidden_sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=MAX_HIDDEN_LAYERS)] = Field(
        (64, 64),
        description="Sizes of the hidden layers of the MLP.",
        json_schema_extra=stays("the checkpoint has weights of these sizes"),
    )
    activation: Activation = Field(
        "tanh",
        description="Activation of the MLP.",
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
        description="Environments an actor steps at once, in one batched forward pass; so does one from elsewhere that "
        "was not started with a number of its own.",
        json_schema_extra=ACTING,
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(
        8,
        description="B: rollouts (trajectories of one environment) in a batch.",
        json_schema_extra=LEARNING,
    )
    updates_per_broadcast: Annotated[int, Field(ge=1)] = Field(
        1,
        description="Updates between two policies that are cast to the actors.",
        json_schema_extra=LEARNING,
    )
    queue_out_of_sync_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0,
        description="Times batch_size, the rollouts that may wait in the queue: bounds how stale they are.",
        json_schema_extra=LEARNING,
    )
    max_policy_lag: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Drop rollouts whose policy is more versions old than this, and count their trajectories as stale; "
        "empty: drop none.",
        json_schema_extra=LEARNING,
    )
    bounded_staleness: bool = Field(
        False,
        description="Let actors wait for the newest policy before they start a rollout. Between actors of equal speed "
        "no rollout is then more than ceil(queue_out_of_sync_factor + n_actors * envs_per_actor / batch_size) updates "
        "old.",
        json_schema_extra=LEARNING,
    )
    deterministic: bool = Field(
        False,
        description="Actors play in step with the updates, in the order of their slots, and all arithmetic has one "
        "thread: the same seeds give the same policy, whoever is faster, in this process, in others, or elsewhere. "
        "IMPALA: a rollout each for every batch; batch_size must be a multiple of envs_per_actor (times agents). With "
        "a replay buffer: a rollout each, and then as many updates as --replay.samples-per-insert asks for, whatever "
        "--updates-per-broadcast says; rollcast learner waits for --max-actors of them.",
        json_schema_extra=stays("a run is deterministic from its first step on, or not at all"),
    )
    total_steps: Annotated[int, Field(ge=1)] = Field(
        20_000_000,
        description="Environment steps after which training ends; every agent's count, where there are several.",
        json_schema_extra=ACTING,
    )
    stop_return: float | None = Field(
        None,
        description="Mean return of the last 100 episodes at which training ends; empty: the environment's own reward "
        "threshold, where it has one.",
        json_schema_extra=FREE,
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0,
        description="From which every other seed derives: networks, environments, sampling of actions.",
        json_schema_extra=stays("everything that was drawn so far came from it"),
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="Where to learn; auto: on a GPU if there is one.",
        json_schema_extra=ACTING,
    )
    torch_threads: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Threads of torch in the learner; 0: as many as there are cores left beside local actors.",
        json_schema_extra=ACTING,
    )
    run_dir: Path | None = Field(
        None,
        description="A new folder for what the run leaves behind; empty: one below runs/, named after the run.",
        json_schema_extra=FREE,
    )
    summary_json: Path | None = Field(
        None,
        description="Write the summary to this file when training has ended.",
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
        description="Updates between two checkpoints, instead of seconds; with sequential actors, a run that is "
        "resumed then has the same bits as one that was never interrupted.",
        json_schema_extra=ACTING,
    )
    keep_checkpoints: Annotated[int, Field(ge=1)] = Field(
        3,
        description="How many of the last checkpoints are kept, besides the one with the highest mean return.",
        json_schema_extra=FREE,
    )
    stop_timeout_s: Annotated[float, Field(gt=0)] = Field(
        600.0,
        description="How long the last checkpoint of a run that is stopped may take, in seconds; less than the time "
        "after which an engine kills what it stops. What is not written by then is given up for the one before.",
        json_schema_extra=FREE,
    )
    durable: bool = Field(
        False,
        description="Write every rollout to a log in the run's folder before it is acknowledged, so that a learner "
        "that is killed and resumed loses none that was; actors of other processes only.",
        json_schema_extra=FREE,
    )
    durable_max_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        8 << 30,
        description="What that log may take on the disk, in bytes: at half of it a checkpoint is made early, at all of "
        "it actors wait.",
        json_schema_extra=FREE,
    )
    resume: str | None = Field(
        None,
        description="Go on with the run in this folder, with its settings; auto: with the newest run of these very "
        "settings, in --run-dir where that is given, or a new one where there is none.",
        json_schema_extra=FREE,
    )
    collect_timeout_s: Annotated[float, Field(gt=0)] = Field(
        600.0,
        description="Seconds without any rollout after which training fails, saying whom it waited for.",
        json_schema_extra=FREE,
    )
    log_level: LogLevel = Field(
        "WARNING",
        description="What to log, to stderr.",
        json_schema_extra=FREE,
    )

    @classmethod
    def help_scope(cls, origins: Origins) -> HelpScope:
        """Returns the settings that apply to the algorithm that is given, and its defaults."""
        algorithm = origins.value_of("algorithm") or cls.model_fields["algorithm"].default
        others = [name for name in ALGORITHM_DEFAULTS if name != algorithm]
        return HelpScope(
            hidden=tuple(sorted(foreign_groups(str(algorithm)))),
            defaults={**ALGORITHM_DEFAULTS.get(str(algorithm), {}), "algorithm": algorithm},
            note=f"Settings and defaults are {algorithm}'s; for others: --algorithm {'|'.join(others)} {HELP}",
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
