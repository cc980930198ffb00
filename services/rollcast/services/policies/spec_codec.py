"""Encodes and decodes the architecture of a policy."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar, get_args

from rollcast.services.errors import InvalidInputError
from rollcast.services.limits.limits import (
    MAX_FRAME_STACK,
    MAX_HIDDEN_LAYERS,
    MAX_NETWORK_LENGTH,
    MAX_RECURRENT_SIZE,
)
from rollcast.services.policies.policies import Activation, PolicyHead, PolicySpec, Recurrence
from rollcast.v1 import rollout_pb2

_ACTIVATIONS: Final[tuple[Activation, ...]] = get_args(Activation)
_HEADS: Final[tuple[PolicyHead, ...]] = get_args(PolicyHead)
_RECURRENCES: Final[tuple[Recurrence, ...]] = get_args(Recurrence)
_Choice = TypeVar("_Choice", bound=str)


def policy_spec_to_proto(spec: PolicySpec) -> rollout_pb2.PolicySpec:
    """Encodes the architecture of a policy.

    Args:
        spec: The architecture.
    """
    return rollout_pb2.PolicySpec(
        network=spec.network,
        hidden_sizes=spec.hidden_sizes,
        activation=spec.activation,
        # Empty, so that actors from before the field understand the message.
        head="" if spec.head == "default" else spec.head,
        recurrence="" if spec.recurrence == "none" else spec.recurrence,
        recurrent_size=spec.recurrent_size if spec.state_size else 0,
        # Absent by default, for the same reason.
        normalize_observations=spec.normalize_observations,
        observation_clip=spec.observation_clip if spec.normalize_observations else 0.0,
        frame_stack=spec.frame_stack if spec.frame_stack > 1 else 0,
    )


def policy_spec_from_proto(proto: rollout_pb2.PolicySpec) -> PolicySpec:
    """Decodes the architecture of a learner's policy.

    Args:
        proto: The message.

    Raises:
        InvalidInputError: The message has too many layers, a layer of size 0, or an unknown activation, head or
            recurrence. Or it has an invalid bound of normalised observations, or too many frames.
    """
    _check_network(proto)
    recurrence = _known(proto.recurrence or "none", _RECURRENCES, "recurrence")
    if recurrence != "none" and not 1 <= proto.recurrent_size <= MAX_RECURRENT_SIZE:
        raise InvalidInputError(
            f"the learner's policy has a recurrent_size of {proto.recurrent_size}; expected 1 to {MAX_RECURRENT_SIZE}; "
            "install the same rollcast on both sides",
            limit="max_recurrent_size",
        )
    if proto.frame_stack > MAX_FRAME_STACK:
        raise InvalidInputError(
            f"the learner's policy has a frame_stack of {proto.frame_stack}; expected at most {MAX_FRAME_STACK}; "
            "install the same rollcast on both sides",
            limit="max_frame_stack",
        )
    memory: dict[str, Any] = {} if recurrence == "none" else {"recurrent_size": proto.recurrent_size}
    return PolicySpec(
        network=proto.network,
        hidden_sizes=tuple(proto.hidden_sizes),
        activation=_known(proto.activation, _ACTIVATIONS, "activation"),
        head=_known(proto.head or "default", _HEADS, "head"),
        recurrence=recurrence,
        **memory,
        **_normalization(proto),
        frame_stack=proto.frame_stack or 1,
    )


def _normalization(proto: rollout_pb2.PolicySpec) -> dict[str, Any]:
    if not proto.normalize_observations:
        return {}
    return {"normalize_observations": True, "observation_clip": proto.observation_clip}


def _known(value: str, choices: Sequence[_Choice], what: str) -> _Choice:
    found = next((choice for choice in choices if choice == value), None)
    if found is None:
        raise InvalidInputError(
            f"the learner's policy has {what} {value!r}; expected one of {list(choices)}; install the same rollcast on "
            "both sides"
        )
    return found


def _check_network(policy: rollout_pb2.PolicySpec) -> None:
    """Refuses a malformed network. A later check, with the spaces, limits its size."""
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
