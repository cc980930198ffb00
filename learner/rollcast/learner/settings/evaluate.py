"""The settings of `rollcast evaluate`. Imports neither torch nor grpc."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.learner.settings.playing import PlayingSettings
from rollcast.services.settings.settings import LogLevel


class EvaluateSettings(PlayingSettings):
    """Plays episodes with a policy that a run has saved."""

    run_dir: CliPositionalArg[Path] = Field(description="The run's folder.")
    n_episodes: Annotated[int, Field(ge=1)] = Field(20, description="Episodes to play.")
    deterministic: bool = Field(True, description="Take the most likely action, instead of sampling.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="Episode i is played with a seed derived from this one and i."
    )
    video: Path | None = Field(None, description="Record the episodes into this folder; needs the extra 'video'.")
    summary_json: Path | None = Field(None, description="Write the figures to this file.")
    log_level: LogLevel = Field("WARNING", description="What to log, to stderr.")
