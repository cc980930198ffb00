"""The settings of `rollcast recipes`. Imports neither torch nor grpc."""

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.services.settings.settings import ProcessSettings


class RecipesSettings(ProcessSettings):
    """Lists the recipes for `rollcast train --recipe`, or prints one: tuned settings of an algorithm for a task."""

    name: CliPositionalArg[str | None] = Field(default=None, description="The recipe to print. Default: list all.")
