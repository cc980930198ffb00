"""Encodes and decodes a replay buffer's info and status, and decodes updates of priorities."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.services.errors import InvalidTensorError
from rollcast.services.replay.replay import ReplayInfo, ReplayStatus, ReplayWaiting
from rollcast.services.spaces.codec import environment_spaces_from_proto, environment_spaces_to_proto
from rollcast.services.wire.same_fields import same_fields
from rollcast.services.wire.tensors import tensor_from_proto
from rollcast.v1 import replay_pb2

_INT64: Final = np.dtype("<i8")
# The fields with the contract's names. Tests compare them with the descriptors.
_status_fields: Final = same_fields(ReplayStatus, but=("waiting",))
_info_fields: Final = same_fields(ReplayInfo, but=("waiting", "spaces"))
_waiting_fields: Final = same_fields(ReplayWaiting)


def replay_info_to_proto(info: ReplayInfo) -> replay_pb2.ReplayInfo:
    """Encodes the state of a buffer.

    Args:
        info: The value.
    """
    return replay_pb2.ReplayInfo(
        waiting=_waiting_to_protos(info.waiting),
        substeps=environment_spaces_to_proto(info.spaces),
        **_info_fields(info),
    )


def replay_info_from_proto(proto: replay_pb2.ReplayInfo) -> ReplayInfo:
    """Decodes the state of a buffer.

    Args:
        proto: The message.

    Raises:
        InvalidSpaceError: A space is malformed.
    """
    return ReplayInfo(
        waiting=_waiting_from_protos(proto.waiting),
        spaces=environment_spaces_from_proto(proto.substeps),
        **_info_fields(proto),
    )


def replay_status_to_proto(status: ReplayStatus) -> replay_pb2.ReplayStatus:
    """Encodes the changing part of a buffer's state.

    Args:
        status: The value.
    """
    return replay_pb2.ReplayStatus(waiting=_waiting_to_protos(status.waiting), **_status_fields(status))


def replay_status_from_proto(proto: replay_pb2.ReplayStatus) -> ReplayStatus:
    """Decodes the changing part of a buffer's state.

    Args:
        proto: The message.
    """
    return ReplayStatus(waiting=_waiting_from_protos(proto.waiting), **_status_fields(proto))


def _waiting_to_protos(waiting: Iterable[ReplayWaiting]) -> list[replay_pb2.ReplayWaiting]:
    return [replay_pb2.ReplayWaiting(**_waiting_fields(one)) for one in waiting]


def _waiting_from_protos(protos: Iterable[replay_pb2.ReplayWaiting]) -> tuple[ReplayWaiting, ...]:
    return tuple(ReplayWaiting(**_waiting_fields(proto)) for proto in protos)


def priorities_from_proto(
    proto: replay_pb2.UpdatePrioritiesRequest,
) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]]]:
    """Decodes an update of priorities.

    Args:
        proto: The message.

    Returns:
        The keys `[N]` and the priorities `[N]`, with unchecked values.

    Raises:
        InvalidTensorError: A tensor has a wrong dtype or shape, or the numbers of keys and priorities differ.
    """
    keys = tensor_from_proto(proto.keys, dtype=_INT64, shape=(-1,), what="keys")
    priorities = tensor_from_proto(proto.priorities, shape=(len(keys),), what="priorities")
    if priorities.dtype not in (np.dtype("<f4"), np.dtype("<f8")):
        raise InvalidTensorError(
            f"priorities have dtype {priorities.dtype}; expected float32 or float64; convert them before sending"
        )
    return keys, priorities
