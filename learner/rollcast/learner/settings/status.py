"""The settings of `rollcast status`, `rollcast top` and `rollcast doctor`. Imports neither torch nor grpc."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.services.limits.settings import TimeoutSeconds
from rollcast.services.security.settings import ClientSecuritySettings
from rollcast.services.settings.addresses import ServerAddress


class StatusSettings(ClientSecuritySettings):
    """Shows the status of a learner."""

    address: ServerAddress = Field(
        "localhost:50051",
        description="The learner's address: host:port, unix:/path, or file:/path of its --address-file.",
    )
    watch: bool = Field(False, description="Show the status again every second until training ends.")
    actors: bool = Field(False, description="Also list the actors.")
    json_output: bool = Field(False, description="Print JSON instead of a table.")
    timeout_s: TimeoutSeconds = Field(5.0, description="Seconds to wait for an answer.")


class TopSettings(ClientSecuritySettings):
    """Shows a run in the terminal while it goes on: who waits for whom, and what each actor does. q ends it."""

    address: ServerAddress = Field(
        "localhost:50051",
        description="The learner's address: host:port, unix:/path, or file:/path of its --address-file.",
    )
    once: bool = Field(
        False,
        description="Print the view once, without colours and with all actors, and end. So it does if its output is no "
        "terminal.",
    )
    span_s: float = Field(60.0, ge=1.0, le=3600.0, description="Seconds of time that the lanes show.")
    timeout_s: TimeoutSeconds = Field(5.0, description="Seconds to wait for the first answer.")


class DoctorSettings(ClientSecuritySettings):
    """Finds out what is wrong with a run, and what to do: who waits for whom, since when, and whether it learns.

    Asks a learner; or, with the folder of a run, reads its records, and says whether it learns or has learnt. Exits
    with 1 if training has stopped or an actor is missing, else with 0.
    """

    run: CliPositionalArg[Path | None] = Field(
        None, description="The folder of a run, which may have ended. Default: ask the learner at --address."
    )

    address: ServerAddress = Field(
        "localhost:50051",
        description="The learner's address: host:port, unix:/path, or file:/path of its --address-file.",
    )
    json_output: bool = Field(False, description="Print JSON instead of lines.")
    timeout_s: TimeoutSeconds = Field(5.0, description="Seconds to wait for an answer.")
