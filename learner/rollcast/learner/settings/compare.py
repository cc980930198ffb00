"""The settings of `rollcast compare`. Imports neither torch nor grpc."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.services.settings.settings import ProcessSettings


class CompareSettings(ProcessSettings):
    """Shows the settings in which runs differ, and how far each came."""

    runs: CliPositionalArg[Annotated[list[Path], Field(min_length=2)]] = Field(
        description="The folders of the runs, two or more."
    )
    json_output: bool = Field(False, description="Print JSON: an object with the values of each setting, run by run.")
