"""Defines the description of a learner, for actors that have not joined yet."""

from dataclasses import dataclass

from rollcast.services.joining.join import PROTOCOL_VERSION
from rollcast.services.limits.limits import MAX_MESSAGE_BYTES, Limits
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerLimits(Limits):
    """The limits of a learner that clients need to know. `rollcast.v1.LearnerLimits` documents the fields."""

    max_message_bytes: int = MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerDescription:
    """The spaces, policy and work of a learner. `rollcast.v1.LearnerDescription` documents the fields."""

    spaces: EnvironmentSpaces
    policy: PolicySpec
    n_rollout_steps: int
    batch_size: int
    n_envs: int
    algorithm: str
    software_version: str
    protocol_version: int = PROTOCOL_VERSION
    limits: LearnerLimits = LearnerLimits()
