"""Describes a learner to actors that have not joined yet, as values."""

from dataclasses import dataclass, field

from rollcast.services.limits.limits import DEFAULT_LIMITS, MAX_MESSAGE_BYTES, Limits
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.join import PROTOCOL_VERSION
from rollcast.services.spaces.spaces import EnvironmentSpaces


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerLimits:
    """The limits of a learner that clients should know; field by field as `rollcast.v1.LearnerLimits` documents it."""

    max_actors: int
    max_connections: int
    max_streams_per_connection: int
    max_message_bytes: int
    max_rollout_bytes: int
    max_bytes_in_flight: int
    calls_per_second: float
    calls_per_second_per_host: float
    stalled_stream_s: float
    join_lease_s: float
    request_s: float
    max_half_open_calls: int
    max_half_open_calls_per_host: int

    @classmethod
    def of(cls, limits: Limits) -> "LearnerLimits":
        """Picks from a server's limits those that its clients are told.

        Args:
            limits: The server's limits.
        """
        names = (name for name in cls.__dataclass_fields__ if name != "max_message_bytes")
        return cls(max_message_bytes=MAX_MESSAGE_BYTES, **{name: getattr(limits, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerDescription:
    """The spaces, policy and work of a learner; field by field as `rollcast.v1.LearnerDescription` documents it."""

    spaces: EnvironmentSpaces
    policy: PolicySpec
    n_rollout_steps: int
    batch_size: int
    n_envs: int
    algorithm: str
    software_version: str
    protocol_version: int = PROTOCOL_VERSION
    limits: LearnerLimits = field(default_factory=lambda: LearnerLimits.of(DEFAULT_LIMITS))
