"""Encodes and decodes a learner's description."""

from typing import Final

from rollcast.services.policies.spec_codec import policy_spec_from_proto, policy_spec_to_proto
from rollcast.services.spaces.codec import environment_spaces_from_proto, environment_spaces_to_proto
from rollcast.services.status.description import LearnerDescription, LearnerLimits
from rollcast.services.wire.same_fields import same_fields
from rollcast.v1 import learner_pb2

# The fields with the contract's names. A test compares them with the descriptors.
_numbers_and_names: Final = same_fields(LearnerDescription, but=("spaces", "policy", "limits"))
_limits: Final = same_fields(LearnerLimits)


def description_to_proto(description: LearnerDescription) -> learner_pb2.LearnerDescription:
    """Encodes a learner's description.

    Args:
        description: The description.

    Raises:
        InvalidSpaceError: A space is not supported.
    """
    return learner_pb2.LearnerDescription(
        substeps=environment_spaces_to_proto(description.spaces),
        policy=policy_spec_to_proto(description.policy),
        limits=learner_pb2.LearnerLimits(**_limits(description.limits)),
        **_numbers_and_names(description),
    )


def description_from_proto(proto: learner_pb2.LearnerDescription) -> LearnerDescription:
    """Decodes a learner's description.

    Args:
        proto: The message.

    Raises:
        InvalidInputError: The activation or the head of the policy is unknown.
        InvalidSpaceError: A space is malformed, or exceeds a limit.
        InvalidTensorError: A bound of a space is malformed.
    """
    return LearnerDescription(
        spaces=environment_spaces_from_proto(proto.substeps),
        policy=policy_spec_from_proto(proto.policy),
        limits=LearnerLimits(**_limits(proto.limits)),
        **_numbers_and_names(proto),
    )
