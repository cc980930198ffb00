"""Defines the settings of a server's limits. Imports no grpc."""

import dataclasses
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import DEFAULT_LIMITS, LONGEST_WAIT_S, Limits
from rollcast.services.settings.numbers import AtLeastOne
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.setting import setting
from rollcast.services.settings.settings import ProcessSettings

# The type of a setting for a deadline, in seconds.
TimeoutSeconds = Annotated[float, Field(gt=0, le=LONGEST_WAIT_S)]


class LimitSettings(BaseModel):
    """Limits on the memory and work that clients may cause. docs/reference/limits.md explains each limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_connections: AtLeastOne = setting(
        DEFAULT_LIMITS.max_connections, "TCP connections that may be open at once.", FREE
    )
    max_streams_per_connection: AtLeastOne = setting(
        DEFAULT_LIMITS.max_streams_per_connection,
        "Calls that may be open on one connection; further ones wait at the client.",
        FREE,
    )
    max_rollout_bytes: AtLeastOne = setting(
        DEFAULT_LIMITS.max_rollout_bytes, "Largest rollout, in bytes of its tensors.", FREE
    )
    max_bytes_in_flight: AtLeastOne = setting(
        DEFAULT_LIMITS.max_bytes_in_flight,
        "Bytes of all rollouts that are being received or wait for the queue; above that, actors wait.",
        FREE,
    )
    calls_per_second: PositiveFloat = setting(
        DEFAULT_LIMITS.calls_per_second,
        "Calls a second from all clients, twice as many in a burst. Messages in open streams do not count.",
        FREE,
    )
    calls_per_second_per_host: PositiveFloat = setting(
        DEFAULT_LIMITS.calls_per_second_per_host, "Calls a second from one address.", FREE
    )
    max_half_open_calls: AtLeastOne = setting(
        DEFAULT_LIMITS.max_half_open_calls,
        "Calls whose request has not arrived; above that, the server ends the oldest of them.",
        FREE,
    )
    max_half_open_calls_per_host: AtLeastOne = setting(
        DEFAULT_LIMITS.max_half_open_calls_per_host, "The same for calls from one address.", FREE
    )
    request_s: PositiveFloat = setting(
        DEFAULT_LIMITS.request_s, "Seconds that a client may take to send the request of a call.", FREE
    )
    stalled_stream_s: PositiveFloat = setting(
        DEFAULT_LIMITS.stalled_stream_s,
        "Seconds that a client may take to send a large request, to accept a message of a stream, or to "
        "continue a rollout.",
        FREE,
    )
    join_lease_s: PositiveFloat = setting(
        DEFAULT_LIMITS.join_lease_s, "Seconds that an actor may take to open its stream after joining.", FREE
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuses limits that contradict each other; pydantic wraps the error."""
        try:
            Limits(**self.model_dump()).check()
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return self


class ServerLimitSettings(ProcessSettings):
    """The settings of a server's limits."""

    max_actors: Annotated[int, Field(ge=1, le=4096)] = setting(
        DEFAULT_LIMITS.max_actors, "Actors that may be connected at once.", FREE
    )
    limits: LimitSettings = Field(default_factory=LimitSettings, description="Limits for clients.")

    def server_limits(self) -> Limits:
        """Returns all limits together."""
        return dataclasses.replace(Limits(**self.limits.model_dump()), max_actors=self.max_actors)
