"""Defines the settings of a server's limits. Imports no grpc."""

import dataclasses
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import DEFAULT_LIMITS, LONGEST_WAIT_S, Limits
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.settings import ProcessSettings

# The type of a setting that is a deadline, in seconds.
TimeoutSeconds = Annotated[float, Field(gt=0, le=LONGEST_WAIT_S)]


_Count = Annotated[int, Field(ge=1, json_schema_extra=FREE)]
_Amount = Annotated[float, Field(gt=0, json_schema_extra=FREE)]


class LimitSettings(BaseModel):
    """Limits on what clients may make a server hold and do; docs/operations.md explains each."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_connections: _Count = Field(
        DEFAULT_LIMITS.max_connections, description="TCP connections that may be open at once."
    )
    max_streams_per_connection: _Count = Field(
        DEFAULT_LIMITS.max_streams_per_connection,
        description="Calls that may be open on one connection; further ones wait at the client.",
    )
    max_rollout_bytes: _Count = Field(
        DEFAULT_LIMITS.max_rollout_bytes, description="Largest rollout, in bytes of its tensors."
    )
    max_bytes_in_flight: _Count = Field(
        DEFAULT_LIMITS.max_bytes_in_flight,
        description="Bytes of all rollouts that are being received or wait to be taken; above that, actors wait.",
    )
    calls_per_second: _Amount = Field(
        DEFAULT_LIMITS.calls_per_second,
        description="Calls a second from all clients, twice as many in a burst. Messages in open streams do not count.",
    )
    calls_per_second_per_host: _Amount = Field(
        DEFAULT_LIMITS.calls_per_second_per_host, description="Calls a second from one address."
    )
    max_half_open_calls: _Count = Field(
        DEFAULT_LIMITS.max_half_open_calls,
        description="Calls whose request has not arrived; above that, the server ends the oldest of them.",
    )
    max_half_open_calls_per_host: _Count = Field(
        DEFAULT_LIMITS.max_half_open_calls_per_host, description="The same for calls from one address."
    )
    request_s: _Amount = Field(
        DEFAULT_LIMITS.request_s, description="Seconds that a client may take to send the request of a call."
    )
    stalled_stream_s: _Amount = Field(
        DEFAULT_LIMITS.stalled_stream_s,
        description="Seconds that a client may take to send a large request, to accept a message of a stream, or to "
        "continue a rollout.",
    )
    join_lease_s: _Amount = Field(
        DEFAULT_LIMITS.join_lease_s, description="Seconds that an actor may take to open its stream after joining."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuses limits that contradict each other; pydantic turns our error into its own."""
        try:
            Limits(**self.model_dump()).check()
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return self


class ServerLimitSettings(ProcessSettings):
    """The settings of a server's limits."""

    max_actors: Annotated[int, Field(ge=1, le=4096)] = Field(
        DEFAULT_LIMITS.max_actors,
        description="Actors that may be connected at once.",
        json_schema_extra=FREE,
    )
    limits: LimitSettings = Field(default_factory=LimitSettings, description="Limits on what clients may use.")

    def server_limits(self) -> Limits:
        """Returns all limits together."""
        return dataclasses.replace(Limits(**self.limits.model_dump()), max_actors=self.max_actors)
