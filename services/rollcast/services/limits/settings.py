"""The settings of a server's limits. Imports no grpc."""

import dataclasses
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import DEFAULT_LIMITS, Limits
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.settings import ProcessSettings


class LimitSettings(BaseModel):
    """What clients may make the server hold and do, at each address; docs/operations.md has all of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_connections: int = Field(
        DEFAULT_LIMITS.max_connections,
        ge=1,
        description="TCP connections that are open at once.",
        json_schema_extra=FREE,
    )
    max_streams_per_connection: int = Field(
        DEFAULT_LIMITS.max_streams_per_connection,
        ge=1,
        description="Calls that are open on one connection; further ones wait at the client.",
        json_schema_extra=FREE,
    )
    max_rollout_bytes: int = Field(
        DEFAULT_LIMITS.max_rollout_bytes,
        ge=1,
        description="Bytes of the tensors of one rollout.",
        json_schema_extra=FREE,
    )
    max_bytes_in_flight: int = Field(
        DEFAULT_LIMITS.max_bytes_in_flight,
        ge=1,
        description="Bytes of the rollouts of all actors that are on their way or wait to be taken; beyond that, "
        "actors are held back.",
        json_schema_extra=FREE,
    )
    calls_per_second: float = Field(
        DEFAULT_LIMITS.calls_per_second,
        gt=0,
        description="Calls of all clients, twice as many in a burst; what travels in streams does not count.",
        json_schema_extra=FREE,
    )
    calls_per_second_per_host: float = Field(
        DEFAULT_LIMITS.calls_per_second_per_host,
        gt=0,
        description="Those from one address.",
        json_schema_extra=FREE,
    )
    max_half_open_calls: int = Field(
        DEFAULT_LIMITS.max_half_open_calls,
        ge=1,
        description="Calls whose request has not come; above that the oldest of them is ended.",
        json_schema_extra=FREE,
    )
    max_half_open_calls_per_host: int = Field(
        DEFAULT_LIMITS.max_half_open_calls_per_host,
        ge=1,
        description="Those from one address.",
        json_schema_extra=FREE,
    )
    request_s: float = Field(
        DEFAULT_LIMITS.request_s,
        gt=0,
        description="Seconds that a client may take to send the request of its call.",
        json_schema_extra=FREE,
    )
    stalled_stream_s: float = Field(
        DEFAULT_LIMITS.stalled_stream_s,
        gt=0,
        description="Seconds that a client may take to send a large request, to take a message of a stream, or to go "
        "on with a rollout.",
        json_schema_extra=FREE,
    )
    join_lease_s: float = Field(
        DEFAULT_LIMITS.join_lease_s,
        gt=0,
        description="Seconds that an actor may take to open its stream after it has joined.",
        json_schema_extra=FREE,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuses what cannot be right together; pydantic makes its own error of ours."""
        try:
            Limits(**self.model_dump()).check()
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return self


class ServerLimitSettings(ProcessSettings):
    """What a server gives to its clients."""

    max_actors: Annotated[int, Field(ge=1, le=4096)] = Field(
        DEFAULT_LIMITS.max_actors,
        description="Actors that may be connected at once.",
        json_schema_extra=FREE,
    )
    limits: LimitSettings = Field(default_factory=LimitSettings, description="What clients get of the server.")

    def server_limits(self) -> Limits:
        """All of them together."""
        return dataclasses.replace(Limits(**self.limits.model_dump()), max_actors=self.max_actors)
