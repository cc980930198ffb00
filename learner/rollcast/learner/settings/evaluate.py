"""The settings of `rollcast evaluate`. Imports neither torch nor grpc."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.learner.settings.playing import PlayingSettings
from rollcast.services.joining.evaluation import EvalActions
from rollcast.services.settings.numbers import AtLeastOne, Seed
from rollcast.services.settings.settings import LogLevel


class EvaluateSettings(PlayingSettings):
    """Plays episodes with a saved policy of a run, and prints its mean return."""

    run_dir: CliPositionalArg[Path] = Field(description="The run's folder.")
    env_id: str | None = Field(
        None, description="The environment to play in, as for rollcast train. Default: the run's."
    )
    n_episodes: AtLeastOne = Field(20, description="Episodes to play.")
    eval_actions: EvalActions | None = Field(
        None,
        description="Actions to play: likeliest (greedy actions), drawn (sampled from the policy), or both. Default: "
        "the run's.",
    )
    seed: Seed = Field(0, description="The seed of the evaluation; the seed of episode i derives from it and i.")
    video: Path | None = Field(
        None, description="Record videos of the episodes into this folder; needs the extra 'video'. Default: no videos."
    )
    summary_json: Path | None = Field(None, description="Write the results to this file. Default: no file.")
    log_level: LogLevel = Field("WARNING", description="Least severe messages to log, on stderr.")
