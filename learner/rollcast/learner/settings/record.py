"""The settings of `rollcast record`. Imports neither torch nor grpc."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from rollcast.actor.settings import EnvsPerActor
from rollcast.learner.settings.playing import PlayingSettings
from rollcast.services.settings.settings import LogLevel

RANDOM = "random"


class RecordSettings(PlayingSettings):
    """Plays rollouts into a file: demonstrations, for --initial-data, and for programs in any language."""

    output: Path = Field(description="The file to write.")
    overwrite: bool = Field(False, description="Take the place of a file of that name.")
    rollouts: Annotated[int, Field(ge=1)] | None = Field(
        None, description="How many rollouts, of all --envs-per-actor environments each; this, or --steps."
    )
    steps: Annotated[int, Field(ge=1)] | None = Field(
        None, description="As many rollouts as have so many environment steps; this, or --rollouts."
    )
    policy: str = Field(
        RANDOM, description="Who plays: the folder of a run, or random, uniformly from the action space."
    )
    deterministic: bool = Field(
        False, description="Take the most likely action of a run's policy, instead of sampling."
    )
    n_rollout_steps: Annotated[int, Field(ge=1)] = Field(
        32, description="T: environment steps in a rollout; a run that loads the file may have another."
    )
    envs_per_actor: EnvsPerActor = Field(8, description="B: environments played at once.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="From which the seeds of environments and actions derive; the same seed gives the same file."
    )
    summary_json: Path | None = Field(None, description="Write the figures to this file.")
    log_level: LogLevel = Field("WARNING", description="What to log, to stderr.")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuses settings of which each is right and all together are not; pydantic makes its own error of ours."""
        if (self.rollouts is None) is (self.steps is None):
            raise ValueError(
                f"rollouts is {self.rollouts} and steps {self.steps}; expected one of them; say --rollouts N, or "
                "--steps N"
            )
        if self.deterministic and self.policy == RANDOM:
            raise ValueError(
                "deterministic is True with policy 'random'; expected a run's policy; say --policy RUN_DIR"
            )
        return self
