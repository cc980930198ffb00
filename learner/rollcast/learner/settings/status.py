"""The settings of `rollcast status` and `rollcast doctor`. Imports neither torch nor grpc."""

from pydantic import Field

from rollcast.services.limits.settings import TimeoutSeconds
from rollcast.services.security.settings import ClientSecuritySettings


class StatusSettings(ClientSecuritySettings):
    """Shows the status of a learner."""

    address: str = Field(
        "localhost:50051",
        description="The learner's address: host:port, unix:/path, or file:/path of its --address-file.",
    )
    watch: bool = Field(False, description="Show the status again every second until training ends.")
    actors: bool = Field(False, description="Also list the actors.")
    json_output: bool = Field(False, description="Print JSON instead of a table.")
    timeout_s: TimeoutSeconds = Field(5.0, description="Seconds to wait for an answer.")


class DoctorSettings(ClientSecuritySettings):
    """Finds out what is wrong with a run, and what to do: who waits for whom, and since when."""

    address: str = Field(
        "localhost:50051",
        description="The learner's address: host:port, unix:/path, or file:/path of its --address-file.",
    )
    json_output: bool = Field(False, description="Print JSON instead of lines.")
    timeout_s: TimeoutSeconds = Field(5.0, description="Seconds to wait for an answer.")
