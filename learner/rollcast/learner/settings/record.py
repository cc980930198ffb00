"""The settings of `rollcast record`. Imports neither torch nor grpc."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from rollcast.actor.settings import EnvsPerActor
from rollcast.learner.settings.playing import PlayingSettings
from rollcast.services.settings.numbers import AtLeastOne, Seed
from rollcast.services.settings.settings import LogLevel

RANDOM = "random"


class RecordSettings(PlayingSettings):
    """Records rollouts in a file: demonstrations for --initial-data, or data for programs in any language."""

    first_options: ClassVar = (
        *("output", "overwrite", "rollouts", "steps", "policy", "saved_policy", "deterministic"),
        *("env_id", "env_kwargs", "atari", "n_rollout_steps", "envs_per_actor", "seed"),
    )

    output: Path = Field(description="The file to write.")
    overwrite: bool = Field(False, description="Replace the file if it exists.")
    rollouts: AtLeastOne | None = Field(
        None,
        description="Rollouts to record. Each contains all --envs-per-actor environments. Default: --steps decides.",
    )
    steps: AtLeastOne | None = Field(
        None, description="Environment steps to record, rounded up to whole rollouts. Default: --rollouts decides."
    )
    policy: str = Field(
        RANDOM, description="The policy that plays: the folder of a run, or random for uniformly random actions."
    )
    deterministic: bool = Field(False, description="Take the most likely action of a run's policy instead of sampling.")
    n_rollout_steps: AtLeastOne = Field(
        32, description="T: environment steps in a rollout. A run that loads the file may have another T."
    )
    envs_per_actor: EnvsPerActor = Field(8, description="B: environments to step at once.")
    seed: Seed = Field(
        0,
        description="The seed of environments and actions. The same seed gives the same file.",
    )
    summary_json: Path | None = Field(None, description="Write the summary to this file. Default: no file.")
    log_level: LogLevel = Field("WARNING", description="Least severe messages to log, on stderr.")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Checks settings that depend on each other; pydantic turns the ValueError into its own error."""
        if (self.rollouts is None) is (self.steps is None):
            raise ValueError(
                f"rollouts is {self.rollouts} and steps is {self.steps}; expected exactly one; give --rollouts N or "
                "--steps N"
            )
        if self.deterministic and self.policy == RANDOM:
            raise ValueError(
                "deterministic is True with policy 'random'; expected the policy of a run; give --policy RUN_DIR"
            )
        return self
