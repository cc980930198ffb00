"""The settings of `rollcast certs`. Imports neither torch nor grpc."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.services.settings.settings import ProcessSettings


class CertsSettings(ProcessSettings):
    """Makes a development authority, and certificates and tokens for a learner and its clients, in a folder."""

    directory: CliPositionalArg[Path] = Field(description="The folder; nothing in it is overwritten.")
    host: tuple[str, ...] = Field(
        (),
        description="A further name or number that clients reach the learner by, besides localhost and the loopback; "
        "may be given several times.",
    )
    days: Annotated[float, Field(gt=0, le=3650)] = Field(365.0, description="How long they are in force.")
