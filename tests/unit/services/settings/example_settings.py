"""Settings of every kind, and how tests read them."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import CliPositionalArg

from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.settings import EntryPointKwargs, ProcessSettings


class Network(BaseModel):
    """A nested group."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    learning_rate: float = Field(1e-3, description="Step size.")
    activation: Literal["tanh", "relu"] = Field("tanh", description="Its function.")


class Settings(ProcessSettings):
    """Does something."""

    first_options: ClassVar = ("seed", "network.learning_rate")

    seed: Annotated[int, Field(ge=0)] = Field(0, description="Where randomness comes from.")
    n_actors: int = Field(2, description="How many.")
    stop_return: float | None = Field(None, description="When to stop. Default: never.")
    sizes: tuple[int, ...] = Field((64, 64), description="Sizes.")
    env_kwargs: EntryPointKwargs = Field(default_factory=dict, description="Arguments.")
    deterministic: bool = Field(False, description="The same again.")
    network: Network = Field(default_factory=Network, description="The network.")


class Positional(ProcessSettings):
    """Looks at a folder."""

    run_dir: CliPositionalArg[Path] = Field(description="The folder.")


def read(*arguments: str) -> Settings:
    return Settings.from_command_line("rollcast try", arguments)


def refused(*arguments: str, settings: type[ProcessSettings] = Settings) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settings.from_command_line("rollcast try", arguments)
    return str(caught.value)
