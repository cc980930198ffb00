"""Encodes the architecture of a policy as protobuf, and back."""

from typing import Final, get_args

from rollcast.services.errors import InvalidInputError
from rollcast.services.limits.limits import MAX_HIDDEN_LAYERS, MAX_NETWORK_LENGTH
from rollcast.services.policies.policies import Activation, PolicyHead, PolicySpec
from rollcast.v1 import rollout_pb2

_ACTIVATIONS: Final[tuple[Activation, ...]] = get_args(Activation)
_HEADS: Final[tuple[PolicyHead, ...]] = get_args(PolicyHead)


def policy_spec_to_proto(spec: PolicySpec) -> rollout_pb2.PolicySpec:
    """Encodes the architecture of a policy.

    Args:
        spec: The architecture.
    """
    return rollout_pb2.PolicySpec(
        network=spec.network,
        hidden_sizes=spec.hidden_sizes,
        activation=spec.activation,
        # Empty, so that the message is the one of before there were heads, which old actors understand.
        head="" if spec.head == "default" else spec.head,
    )


def policy_spec_from_proto(proto: rollout_pb2.PolicySpec) -> PolicySpec:
    """Decodes the architecture of a learner's policy.

    Args:
        proto: The message.

    Raises:
        InvalidInputError: It has too many layers or one of size 0, or an unknown activation or head.
    """
    _check_network(proto)
    activation = next((known for known in _ACTIVATIONS if known == proto.activation), None)
    if activation is None:
        raise InvalidInputError(
            f"the learner's policy has activation {proto.activation!r}; expected one of {list(_ACTIVATIONS)}; install "
            "the same rollcast on both sides"
        )
    head = next((known for known in _HEADS if known == (proto.head or "default")), None)
    if head is None:
        raise InvalidInputError(
            f"the learner's policy has head {proto.head!r}; expected one of {list(_HEADS)}; install the same rollcast "
            "on both sides"
        )
    return PolicySpec(network=proto.network, hidden_sizes=tuple(proto.hidden_sizes), activation=activation, head=head)


def _check_network(policy: rollout_pb2.PolicySpec) -> None:
    """Refuses a malformed network; the spaces decide how large it may be."""
    sizes = policy.hidden_sizes
    if len(sizes) > MAX_HIDDEN_LAYERS or not all(sizes):
        raise InvalidInputError(
            f"the learner's policy has {len(sizes)} hidden layers, the first of {list(sizes[:8])}; expected at most "
            f"{MAX_HIDDEN_LAYERS}, each of at least 1; install the same rollcast on both sides",
            limit="max_hidden_layers" if len(sizes) > MAX_HIDDEN_LAYERS else "",
        )
    if len(policy.network) > MAX_NETWORK_LENGTH:
        raise InvalidInputError(
            f"the learner's policy network has a name of {len(policy.network)} characters; expected at most "
            f"{MAX_NETWORK_LENGTH}; install the same rollcast on both sides",
            limit="max_network_length",
        )
