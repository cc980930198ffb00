"""The settings of `rollcast completion`. Imports neither torch nor grpc."""

from typing import Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.services.settings.settings import ProcessSettings


class CompletionSettings(ProcessSettings):
    """Prints a script that lets a shell complete rollcast's commands, options and values."""

    shell: CliPositionalArg[Literal["bash", "zsh"]] = Field(
        description='The shell. Put eval "$(rollcast completion bash)" into its startup file.'
    )
