"""Encodes and decodes the messages of Join. Makes all checks that do not need the learner."""

import math
import re
from typing import Final

from rollcast.services.address import parse_address
from rollcast.services.errors import ConfigurationError, InvalidInputError, LimitExceededError, ProtocolMismatchError
from rollcast.services.joining.evaluation_codec import evaluation_plan_from_proto, evaluation_plan_to_proto
from rollcast.services.joining.join import PROTOCOL_VERSION, ActorRole, JoinAgreement, JoinOffer, Relay
from rollcast.services.limits.counts import MAX_COUNT
from rollcast.services.limits.limits import (
    MAX_ACTOR_ID_LENGTH,
    MAX_ENVS_PER_ACTOR,
    MAX_INTERVAL_S,
    MAX_NAME_LENGTH,
    MAX_NETWORK_LENGTH,
    MAX_RELAYS_IN_A_ROW,
    MIN_INTERVAL_S,
)
from rollcast.services.limits.texts import quoted, quoted_names, shortened
from rollcast.services.policies.spec_codec import policy_spec_from_proto, policy_spec_to_proto
from rollcast.services.spaces.codec import environment_spaces_from_proto, environment_spaces_to_proto
from rollcast.services.spaces.spaces import check_action_space_supported, check_spaces_match
from rollcast.services.wire.same_fields import same_fields
from rollcast.v1 import rollout_pb2

_ACTOR_ID: Final = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)
# A host's name has at most 253 characters, a unix socket's path 107.
_MAX_ADDRESS_LENGTH: Final = 300
# The fields with the same names in the contract.
_offer_fields: Final = same_fields(JoinOffer, but=("spaces", "software_version", "peer", "role", "via"))
_agreement_fields: Final = same_fields(JoinAgreement, but=("spaces", "policy", "n_envs", "evaluation"))


def join_offer_to_proto(offer: JoinOffer) -> rollout_pb2.JoinRequest:
    """Encodes an actor's offer.

    Args:
        offer: The offer. `peer` is not encoded, because the learner sees the actor's address itself.

    Raises:
        InvalidSpaceError: A space is not supported.
    """
    return rollout_pb2.JoinRequest(
        **_offer_fields(offer),
        software_version=offer.software_version,
        substeps=environment_spaces_to_proto(offer.spaces),
        role=offer.role.value,  # type: ignore[arg-type]  # the stub's enum class exists for checkers only
        via=[relay_to_proto(relay) for relay in offer.via],
    )


def join_offer_from_proto(proto: rollout_pb2.JoinRequest, *, peer: str = "") -> JoinOffer:
    """Decodes an actor's offer, and makes all checks that do not need the learner.

    Args:
        proto: The request.
        peer: The caller's address, in gRPC's format.

    Raises:
        ProtocolMismatchError: The actor speaks another version of the protocol, or has an unknown role.
        InvalidInputError: The name or the network is malformed, there are too many environments, or the actor
            continues from an impossible incarnation or rollout.
        InvalidSpaceError: A space is malformed or not supported.
        InvalidTensorError: A bound of a space is malformed.
        LimitExceededError: The request has passed through too many relays.
    """
    if proto.protocol_version != PROTOCOL_VERSION:
        raise ProtocolMismatchError(
            f"actor {quoted(proto.actor_id)} speaks protocol version {proto.protocol_version}; expected "
            f"{PROTOCOL_VERSION}; install the same rollcast on both sides"
        )
    if proto.role not in {role.value for role in ActorRole}:
        raise ProtocolMismatchError(
            f"actor {quoted(proto.actor_id)} has role {proto.role}; expected one of "
            f"{[role.value for role in ActorRole]}; install the same rollcast on both sides"
        )
    n_characters = len(proto.actor_id)
    if n_characters > MAX_ACTOR_ID_LENGTH or not _ACTOR_ID.fullmatch(proto.actor_id):
        raise InvalidInputError(
            f"actor_id is {quoted(proto.actor_id)}; expected at most {MAX_ACTOR_ID_LENGTH} characters of "
            "[A-Za-z0-9._-]; rename the actor",
            limit="max_actor_id_length" if n_characters > MAX_ACTOR_ID_LENGTH else "",
        )
    if not 0 < len(proto.network) <= MAX_NETWORK_LENGTH:
        raise InvalidInputError(
            f"network has {len(proto.network)} characters; expected 1 to {MAX_NETWORK_LENGTH}: 'auto' or "
            "'package.module:factory'; set it",
            limit="max_network_length" if proto.network else "",
        )
    if proto.n_envs > MAX_ENVS_PER_ACTOR:
        raise InvalidInputError(
            f"actor {proto.actor_id!r} steps {proto.n_envs} environments; expected at most {MAX_ENVS_PER_ACTOR}, or 0 "
            "if the learner decides; start more actors",
            limit="max_envs_per_actor",
        )
    _check_counts(proto, f"actor {proto.actor_id!r}")
    spaces = environment_spaces_from_proto(proto.substeps)
    for key, substep in spaces.items():
        check_action_space_supported(substep.action, where=f"actor {proto.actor_id!r}, substep {key!r}")
    return JoinOffer(
        **_offer_fields(proto),
        software_version=shortened(proto.software_version, MAX_NAME_LENGTH),
        spaces=spaces,
        peer=peer,
        role=ActorRole(proto.role),
        via=_via(proto),
    )


def _check_counts(proto: rollout_pb2.JoinRequest | rollout_pb2.JoinResponse, who: str) -> None:
    """Refuses numbers from which the other side could not count on."""
    for what, number in (("incarnation", proto.incarnation), ("rollout", proto.acknowledged_sequence)):
        if number > MAX_COUNT:
            raise InvalidInputError(
                f"{who} continues from {what} {number}; expected at most {MAX_COUNT}, more than any run reaches; "
                "install the same rollcast on both sides"
            )


def relay_to_proto(relay: Relay) -> rollout_pb2.Relay:
    """Encodes a relay.

    Args:
        relay: The relay.
    """
    return rollout_pb2.Relay(relay_id=relay.relay_id, nonce=relay.nonce)


def relay_from_proto(proto: rollout_pb2.Relay) -> Relay:
    """Decodes a relay.

    Args:
        proto: The message.

    Raises:
        InvalidInputError: The relay's name is malformed, or its nonce is 0.
    """
    name = proto.relay_id
    if not 0 < len(name) <= MAX_ACTOR_ID_LENGTH or not _ACTOR_ID.fullmatch(name) or not proto.nonce:
        raise InvalidInputError(
            f"a relay has the name {quoted(name)}{'' if proto.nonce else ' and has nonce 0'}; expected 1 to "
            f"{MAX_ACTOR_ID_LENGTH} characters of [A-Za-z0-9._-] and a nonce that is not 0; rename the relay"
        )
    return Relay(name, proto.nonce)


def _via(proto: rollout_pb2.JoinRequest) -> tuple[Relay, ...]:
    if len(proto.via) > MAX_RELAYS_IN_A_ROW:
        names = quoted_names(relay.relay_id for relay in proto.via)
        raise LimitExceededError(
            f"actor {proto.actor_id!r} joins through {len(proto.via)} relays, {names}; expected at most "
            f"{MAX_RELAYS_IN_A_ROW}; give each relay the address of a learner, or of a relay nearer to it",
            limit="max_relays_in_a_row",
        )
    return tuple(map(relay_from_proto, proto.via))


def join_agreement_to_proto(agreement: JoinAgreement) -> rollout_pb2.JoinResponse:
    """Encodes a learner's agreement.

    Args:
        agreement: The agreement.
    """
    return rollout_pb2.JoinResponse(
        **_agreement_fields(agreement),
        n_envs=agreement.n_envs,
        policy=policy_spec_to_proto(agreement.policy),
        substeps=environment_spaces_to_proto(agreement.spaces or {}),
        evaluation=None if agreement.evaluation is None else evaluation_plan_to_proto(agreement.evaluation),
    )


def join_agreement_from_proto(proto: rollout_pb2.JoinResponse, offer: JoinOffer) -> JoinAgreement:
    """Decodes a learner's agreement to an offer.

    Args:
        proto: The response.
        offer: The actor's offer. Its number of environments applies if the response has none.

    Raises:
        InvalidInputError: The response has a missing or different name, no incarnation or no steps. Or it has another
            number of environments than the offer, impossible numbers, an unknown policy, or a malformed space.
        SpacesMismatchError: The response has other spaces than the offer.
        ProtocolMismatchError: The learner does not support evaluators.
    """
    if offer.role is ActorRole.EVALUATE and not proto.HasField("evaluation"):
        raise ProtocolMismatchError(
            f"the learner treats evaluator {quoted(proto.actor_id)} as an actor; expected a learner that supports "
            "evaluators; install the same rollcast on both sides"
        )
    if not proto.actor_id or proto.incarnation < 1 or proto.n_rollout_steps < 1:
        raise InvalidInputError(
            f"the learner agreed to actor {quoted(proto.actor_id)}, incarnation {proto.incarnation}, "
            f"{proto.n_rollout_steps} steps a rollout; expected a name and numbers of at least 1; check that it is a "
            "rollcast learner"
        )
    _check_identity(proto, offer)
    _check_redirect(proto.learner_address, offer)
    n_envs = proto.n_envs or offer.n_envs
    if not 1 <= n_envs <= MAX_ENVS_PER_ACTOR or offer.n_envs not in (0, n_envs):
        raise InvalidInputError(
            f"the learner agreed to {n_envs} environments for actor {proto.actor_id!r}, which offered "
            f"{offer.n_envs or 'any number'}; expected the offered number, or 1 to {MAX_ENVS_PER_ACTOR}; "
            "install the same rollcast on both sides, or set --envs-per-actor here"
        )
    policy = policy_spec_from_proto(proto.policy)
    spaces = environment_spaces_from_proto(proto.substeps) if proto.substeps else None
    if spaces is not None:
        check_spaces_match(offer.spaces, spaces, expected_side=f"actor {proto.actor_id!r}", offered_side="the learner")
    evaluation = evaluation_plan_from_proto(proto.evaluation) if proto.HasField("evaluation") else None
    return JoinAgreement(**_agreement_fields(proto), n_envs=n_envs, policy=policy, spaces=spaces, evaluation=evaluation)


def _check_redirect(address: str, offer: JoinOffer) -> None:
    """Refuses an address that no actor can follow, or a redirect that the actor did not accept."""
    if not address:
        return
    if not offer.follows_redirect:
        raise InvalidInputError(
            f"the learner redirects this actor a second time, to {quoted(address)}; expected to be accepted; "
            "install the same rollcast at all learners of the run"
        )
    try:
        is_direct = len(address) <= _MAX_ADDRESS_LENGTH and parse_address(address).rendezvous is None
    except ConfigurationError:
        is_direct = False
    if not is_direct:
        raise InvalidInputError(
            f"the learner sends this actor to {quoted(address)}; expected host:port or unix:/path, of at most "
            f"{_MAX_ADDRESS_LENGTH} characters; check that it is a rollcast learner"
        )


def _check_identity(proto: rollout_pb2.JoinResponse, offer: JoinOffer) -> None:
    """Refuses an impossible name, incarnation, sequence or time from the learner."""
    name = proto.actor_id
    if len(name) > MAX_ACTOR_ID_LENGTH or not _ACTOR_ID.fullmatch(name) or offer.actor_id not in ("", name):
        raise InvalidInputError(
            f"the learner calls this actor {quoted(name)}, which offered {offer.actor_id!r}; expected the offered "
            f"name, or at most {MAX_ACTOR_ID_LENGTH} characters of [A-Za-z0-9._-] if none was offered; check that it "
            "is a rollcast learner"
        )
    _check_counts(proto, "the learner")
    if not 0.0 <= proto.awaiting_s < math.inf:  # NaN too
        raise InvalidInputError(
            f"the learner has waited for {proto.awaiting_s} s; expected a finite number of seconds; check that it is a "
            "rollcast learner"
        )
    interval_s = proto.activity_interval_s
    if interval_s and not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:  # NaN too
        raise InvalidInputError(
            f"the learner asks for a report of the time every {interval_s} s; expected {MIN_INTERVAL_S} to "
            f"{MAX_INTERVAL_S} s, or 0 for none; check that it is a rollcast learner"
        )
