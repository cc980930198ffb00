"""Encodes and decodes the failure of an actor or evaluator, and limits the length of its texts."""

from typing import Final

from rollcast.services.joining.activity import ActorFailure
from rollcast.services.limits.limits import MAX_NAME_LENGTH, MAX_REASON_LENGTH, MAX_TRACEBACK_LENGTH
from rollcast.services.limits.texts import shortened, shortened_traceback
from rollcast.services.wire.same_fields import same_fields
from rollcast.v1 import rollout_pb2

_fields: Final = same_fields(ActorFailure)


def failure_to_proto(failure: ActorFailure) -> rollout_pb2.ActorFailure:
    """Encodes a failure, with texts cut to fit into a message.

    Args:
        failure: The failure.
    """
    return rollout_pb2.ActorFailure(**_fields(_cut(failure)))


def failure_from_proto(proto: rollout_pb2.ActorFailure) -> ActorFailure:
    """Decodes a failure, with texts cut to their limits.

    Args:
        proto: The message.
    """
    return _cut(proto)


def _cut(failure: ActorFailure | rollout_pb2.ActorFailure) -> ActorFailure:
    return ActorFailure(
        exception_type=shortened(failure.exception_type, MAX_NAME_LENGTH),
        message=shortened(failure.message, MAX_REASON_LENGTH),
        traceback=shortened_traceback(failure.traceback, MAX_TRACEBACK_LENGTH),
        env_seed=failure.env_seed,
    )
