"""The settings of `rollcast status` and `rollcast doctor`. Imports neither torch nor grpc."""

from typing import Annotated

from pydantic import Field

from rollcast.services.security.settings import ClientSecuritySettings


class StatusSettings(ClientSecuritySettings):
    """Shows how a learner stands, over its gRPC API."""

    address: str = Field("localhost:50051", description="Where the learner listens: host:port or unix:/path.")
    watch: bool = Field(False, description="Show it again and again until training ends.")
    actors: bool = Field(False, description="List the actors, too.")
    json_output: bool = Field(False, description="Print JSON instead of a table.")
    timeout_s: Annotated[float, Field(gt=0)] = Field(5.0, description="How long to wait for an answer, in seconds.")


class DoctorSettings(ClientSecuritySettings):
    """Says what is wrong with a run: who waits, for whom, since when, and what to do."""

    address: str = Field("localhost:50051", description="Where the learner listens: host:port or unix:/path.")
    json_output: bool = Field(False, description="Print JSON instead of lines.")
    timeout_s: Annotated[float, Field(gt=0)] = Field(5.0, description="How long to wait for an answer, in seconds.")
