"""Encodes a learner's description as protobuf, and back."""

import dataclasses
from typing import Final

from rollcast.services.policies.spec_codec import policy_spec_from_proto, policy_spec_to_proto
from rollcast.services.spaces.codec import environment_spaces_from_proto, environment_spaces_to_proto
from rollcast.services.status.description import LearnerDescription, LearnerLimits
from rollcast.v1 import learner_pb2

# These have the contract's names; a test compares them with the descriptors.
_NUMBERS_AND_NAMES: Final = tuple(
    field.name for field in dataclasses.fields(LearnerDescription) if field.name not in ("spaces", "policy", "limits")
)
_LIMITS: Final = tuple(field.name for field in dataclasses.fields(LearnerLimits))


def description_to_proto(description: LearnerDescription) -> learner_pb2.LearnerDescription:
    """Encodes a learner's description.

    Args:
        description: The description.

    Raises:
        InvalidSpaceError: A space is not supported.
    """
    limits = {name: getattr(description.limits, name) for name in _LIMITS}
    return learner_pb2.LearnerDescription(
        substeps=environment_spaces_to_proto(description.spaces),
        policy=policy_spec_to_proto(description.policy),
        limits=learner_pb2.LearnerLimits(**limits),
        **{name: getattr(description, name) for name in _NUMBERS_AND_NAMES},
    )


def description_from_proto(proto: learner_pb2.LearnerDescription) -> LearnerDescription:
    """Decodes a learner's description.

    Args:
        proto: The message.

    Raises:
        InvalidInputError: The activation or the head of the policy is unknown.
        InvalidSpaceError: A space is malformed, or above a limit.
        InvalidTensorError: A bound of a space is malformed.
    """
    return LearnerDescription(
        spaces=environment_spaces_from_proto(proto.substeps),
        policy=policy_spec_from_proto(proto.policy),
        limits=LearnerLimits(**{name: getattr(proto.limits, name) for name in _LIMITS}),
        **{name: getattr(proto, name) for name in _NUMBERS_AND_NAMES},
    )
