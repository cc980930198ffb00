"""Defines the encodings of a policy version for subscribers. All encodings carry the same numbers."""

from enum import Enum
from typing import Final

from rollcast.services.policies.policies import PolicyEncodingName
from rollcast.v1 import policy_pb2


class PolicyEncoding(Enum):
    """An encoding of a version; see `rollcast.v1.PolicyEncoding`."""

    FULL = policy_pb2.POLICY_ENCODING_UNSPECIFIED
    BFLOAT16 = policy_pb2.POLICY_ENCODING_BFLOAT16
    DELTA = policy_pb2.POLICY_ENCODING_DELTA


# The encodings that a subscriber accepts, by the value of the option.
ENCODINGS: Final[dict[PolicyEncodingName, tuple[PolicyEncoding, ...]]] = {
    "full": (),
    "bfloat16": (PolicyEncoding.BFLOAT16,),
    "delta": (PolicyEncoding.DELTA,),
}
