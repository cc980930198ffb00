"""The settings of `rollcast completion`. Imports neither torch nor grpc."""

from typing import Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.services.settings.settings import ProcessSettings


class CompletionSettings(ProcessSettings):
    """Prints a script that makes a shell complete rollcast's commands, options and their values."""

    shell: CliPositionalArg[Literal["bash", "zsh"]] = Field(
        description='The shell, whose startup file is to have: eval "$(rollcast completion bash)".'
    )
