"""The settings of `rollcast ls`. Imports neither torch nor grpc."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.services.settings.settings import ProcessSettings


class LsSettings(ProcessSettings):
    """Lists runs, the newest first: return, evaluation, environment steps, age and state."""

    folders: CliPositionalArg[list[Path]] = Field(
        default=[Path("runs")], description="Folders of runs, or runs. Default: runs."
    )
    json_output: bool = Field(False, description="Print JSON: a list with an object for each run.")
