"""The forms in which a version of a policy can be sent; all of them bring the same numbers."""

from enum import Enum
from typing import Final

from rollcast.services.policies.policies import PolicyEncodingName
from rollcast.v1 import policy_pb2


class PolicyEncoding(Enum):
    """A form in which a version is sent; see `rollcast.v1.PolicyEncoding`."""

    FULL = policy_pb2.POLICY_ENCODING_UNSPECIFIED
    BFLOAT16 = policy_pb2.POLICY_ENCODING_BFLOAT16
    DELTA = policy_pb2.POLICY_ENCODING_DELTA


# By the names that people choose from: what a subscriber takes.
ENCODINGS: Final[dict[PolicyEncodingName, tuple[PolicyEncoding, ...]]] = {
    "full": (),
    "bfloat16": (PolicyEncoding.BFLOAT16,),
    "delta": (PolicyEncoding.DELTA,),
}
