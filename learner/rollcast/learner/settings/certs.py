"""The settings of `rollcast certs`. Imports neither torch nor grpc."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.services.settings.settings import ProcessSettings


class CertsSettings(ProcessSettings):
    """Makes a certificate authority for development, with certificates and tokens for a learner and its clients."""

    directory: CliPositionalArg[Path] = Field(
        description="The folder to write to. Existing files are never overwritten."
    )
    host: tuple[str, ...] = Field(
        (),
        description="Another host name or IP address of the learner, besides localhost and the loopback address. "
        "May be given several times.",
    )
    days: Annotated[float, Field(gt=0, le=3650)] = Field(365.0, description="Days until the certificates expire.")
