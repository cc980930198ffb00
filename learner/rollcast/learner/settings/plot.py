"""The settings of `rollcast plot`. Imports neither torch nor grpc."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.services.settings.settings import ProcessSettings


class PlotSettings(ProcessSettings):
    """Draws the curves of runs: the median of those that differ in their seed only, and their quartiles.

    A run that has reached its end, solved or out of steps, ends with a dot, and counts on with its last value; one that
    was stopped, has failed or still trains ends with a cross, and counts until there. Where a run has ended the median
    is dashed. eval/mean_return of a single run has the 95 % confidence intervals of its evaluations.
    """

    runs: CliPositionalArg[Annotated[list[Path], Field(min_length=1)]] = Field(description="The folders of the runs.")
    out: Path = Field(Path("curves.png"), description="The picture to write: a .png or .svg file.")
    metric: str | None = Field(
        None,
        description="The metric to draw. Default: eval/mean_return where all runs have it, else train/mean_return.",
    )
    over: Literal["env_steps", "seconds"] = Field("env_steps", description="The unit of the horizontal axis.")
    threshold: float | None = Field(None, description="Draw a line at this value, in the metric's unit. Default: none.")
