"""Batches of a replay buffer, and how it stands, as protobuf, and back."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rollcast.v1 import replay_pb2, tensor_pb2

from services.channel import MAX_MESSAGE_BYTES
from services.errors import InvalidTensorError, LimitExceededError
from services.replay import ReplayBatch, ReplayColumns, ReplayInfo, ReplayStatus, ReplayWaiting, join_entries
from services.space_codec import environment_spaces_from_proto, environment_spaces_to_proto
from services.tensors import fill_tensor, tensor_from_proto

# For the arrays' bytes; the rest is for shapes, which are longer in a message that is full than in an empty one.
PART_BYTES: Final = MAX_MESSAGE_BYTES - (64 << 10)

_INT64: Final = np.dtype("<i8")
_FLOAT32: Final = np.dtype("<f4")
_BOOL: Final = np.dtype(np.bool_)
_INFO_FIELDS: Final = (
    *("size", "capacity", "n_bytes", "inserted", "sampled", "ignored_updates", "min_size"),
    *("difference", "min_diff", "max_diff", "n_rollout_steps", "n_sample_steps", "entry_bytes"),
)
_STATUS_FIELDS: Final = tuple(field.name for field in dataclasses.fields(ReplayStatus) if field.name != "waiting")
# By the fields of the message and of the value, which have one name.
_ENTRY_FIELDS: Final[dict[str, np.dtype[Any]]] = {
    "keys": _INT64,
    "weights": _FLOAT32,
    "n_steps": _INT64,
    "discount": _FLOAT32,
    "policy_version": _INT64,
}
_STEP_FIELDS: Final[dict[str, np.dtype[Any]]] = {
    "reward": _FLOAT32,
    "terminated": _BOOL,
    "truncated": _BOOL,
    "valid": _BOOL,
}


def replay_info_to_proto(info: ReplayInfo) -> replay_pb2.ReplayInfo:
    """Encodes how a buffer stands.

    Args:
        info: The value.

    Returns:
        The message.
    """
    return replay_pb2.ReplayInfo(
        waiting=_waiting_to_protos(info.waiting),
        substeps=environment_spaces_to_proto(info.spaces),
        **{name: getattr(info, name) for name in _INFO_FIELDS},
    )


def replay_info_from_proto(proto: replay_pb2.ReplayInfo) -> ReplayInfo:
    """Decodes how a buffer stands.

    Args:
        proto: The message.

    Returns:
        The value.

    Raises:
        InvalidSpaceError: A space is malformed.
    """
    return ReplayInfo(
        waiting=_waiting_from_protos(proto.waiting),
        spaces=environment_spaces_from_proto(proto.substeps),
        **{name: getattr(proto, name) for name in _INFO_FIELDS},
    )


def replay_status_to_proto(status: ReplayStatus) -> replay_pb2.ReplayStatus:
    """Encodes what changes about a buffer.

    Args:
        status: The value.

    Returns:
        The message.
    """
    return replay_pb2.ReplayStatus(
        waiting=_waiting_to_protos(status.waiting), **{name: getattr(status, name) for name in _STATUS_FIELDS}
    )


def replay_status_from_proto(proto: replay_pb2.ReplayStatus) -> ReplayStatus:
    """Decodes what changes about a buffer.

    Args:
        proto: The message.

    Returns:
        The value.
    """
    return ReplayStatus(
        waiting=_waiting_from_protos(proto.waiting), **{name: getattr(proto, name) for name in _STATUS_FIELDS}
    )


def _waiting_to_protos(waiting: Iterable[ReplayWaiting]) -> list[replay_pb2.ReplayWaiting]:
    return [replay_pb2.ReplayWaiting(reason=one.reason, seconds=one.seconds, who=one.who) for one in waiting]


def _waiting_from_protos(protos: Iterable[replay_pb2.ReplayWaiting]) -> tuple[ReplayWaiting, ...]:
    return tuple(ReplayWaiting(reason=proto.reason, seconds=proto.seconds, who=proto.who) for proto in protos)


def batch_to_protos(batch: ReplayBatch) -> Iterator[replay_pb2.SampleResponse]:
    """Encodes a batch, cut along B where it is above one message.

    Args:
        batch: The batch; copied.

    Yields:
        Its parts, in order.

    Raises:
        LimitExceededError: One entry is above a message.
    """
    if batch.n_bytes <= PART_BYTES // 2:  # whatever its paths are called, there is room for them
        yield _part_to_proto(batch, 0, 1)
        return
    most = PART_BYTES - _part_to_proto(batch.entries(0, 0), 0, 1).ByteSize()
    entry_bytes = math.ceil(batch.n_bytes / batch.batch_size)
    n_entries = most // entry_bytes if most > 0 else 0
    while n_entries:  # entries may differ in their final observations: fewer a part, until the largest part fits
        cuts = range(0, batch.batch_size, n_entries)
        pieces = [batch.entries(start, start + n_entries) for start in cuts]
        if max(piece.n_bytes for piece in pieces) <= most:
            break
        n_entries //= 2
    else:
        raise LimitExceededError(
            f"an entry of the replay buffer has {entry_bytes} bytes; expected at most {most}, which fit one "
            "message; keep transitions, or sample shorter sequences"
        )
    for part, piece in enumerate(pieces):
        yield _part_to_proto(piece, part, len(pieces))


def _part_to_proto(batch: ReplayBatch, part: int, parts: int) -> replay_pb2.SampleResponse:
    proto = replay_pb2.SampleResponse(part=part, parts=parts, burn_in=batch.burn_in)
    for name in (*_ENTRY_FIELDS, *_STEP_FIELDS, "final_index"):
        fill_tensor(getattr(proto, name), getattr(batch, name), what=name)
    for key, columns in batch.substeps.items():
        substep = proto.substeps.add(key=key)
        fill_tensor(substep.action, columns.action, what="the action")
        if columns.log_prob is not None:
            fill_tensor(substep.log_prob, columns.log_prob, what="log_prob")
        for name in ("observation", "next_observation", "final_observation"):
            for path, array in getattr(columns, name).items():
                fill_tensor(getattr(substep, name).add(path=path).tensor, array, what=name)
    return proto


class BatchAssembler:
    """Puts the parts of batches together again. For one thread."""

    def __init__(self) -> None:
        self._parts: list[ReplayBatch] = []

    def add(self, proto: replay_pb2.SampleResponse) -> ReplayBatch | None:
        """Takes the next part.

        Args:
            proto: The message.

        Returns:
            The batch, when all its parts are there. Its arrays are read-only.

        Raises:
            InvalidTensorError: A tensor is malformed, or the part is not the next one.
        """
        if proto.part != len(self._parts) or proto.part >= proto.parts:
            raise InvalidTensorError(
                f"part {proto.part} of {proto.parts} of a batch came after {len(self._parts)} parts; expected all, in "
                "order; sample again"
            )
        self._parts.append(_part_from_proto(proto))
        if len(self._parts) < proto.parts:
            return None
        parts, self._parts = self._parts, []
        return join_entries(parts)


def _part_from_proto(proto: replay_pb2.SampleResponse) -> ReplayBatch:
    n_steps, n_entries = _steps_and_entries(proto)
    entries = {
        name: tensor_from_proto(getattr(proto, name), dtype=dtype, shape=(n_entries,), what=name)
        for name, dtype in _ENTRY_FIELDS.items()
    }
    steps = {
        name: tensor_from_proto(getattr(proto, name), dtype=dtype, shape=(n_steps, n_entries), what=name)
        for name, dtype in _STEP_FIELDS.items()
    }
    final_index = tensor_from_proto(proto.final_index, dtype=_INT64, shape=(-1, 2), what="final_index")
    return ReplayBatch(
        **entries,
        **steps,
        final_index=final_index,
        burn_in=proto.burn_in,
        substeps={substep.key: _columns(substep, n_steps, n_entries, len(final_index)) for substep in proto.substeps},
    )


def _steps_and_entries(proto: replay_pb2.SampleResponse) -> Sequence[int]:
    if len(proto.reward.shape) != 2:
        raise InvalidTensorError(f"the reward has shape {list(proto.reward.shape)}; expected [T, B]; sample again")
    return proto.reward.shape


def _columns(proto: replay_pb2.SampleSubstep, n_steps: int, n_entries: int, n_finals: int) -> ReplayColumns:
    return ReplayColumns(
        observation=_leaves(proto.observation, (n_steps, n_entries)),
        action=_leading(tensor_from_proto(proto.action, what="the action"), (n_steps, n_entries), "the action"),
        log_prob=(
            tensor_from_proto(proto.log_prob, dtype=_FLOAT32, shape=(n_steps, n_entries), what="log_prob")
            if proto.HasField("log_prob")
            else None
        ),
        next_observation=_leaves(proto.next_observation, (n_entries,)),
        final_observation=_leaves(proto.final_observation, (n_finals,)),
    )


def _leaves(protos: Iterable[tensor_pb2.NamedTensor], leading: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    return {
        leaf.path: _leading(tensor_from_proto(leaf.tensor, what=f"leaf {leaf.path!r}"), leading, f"leaf {leaf.path!r}")
        for leaf in protos
    }


def _leading(values: NDArray[Any], leading: tuple[int, ...], what: str) -> NDArray[Any]:
    if values.shape[: len(leading)] != leading:
        raise InvalidTensorError(
            f"{what} has shape {list(values.shape)}; expected it to begin with {list(leading)}; sample again"
        )
    return values


def priorities_from_proto(
    proto: replay_pb2.UpdatePrioritiesRequest,
) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]]]:
    """Decodes an update of priorities.

    Args:
        proto: The message.

    Returns:
        The keys `[N]` and the priorities `[N]`, which are yet to be looked at.

    Raises:
        InvalidTensorError: A tensor has another dtype or shape than it should, or they differ in length.
    """
    keys = tensor_from_proto(proto.keys, dtype=_INT64, shape=(-1,), what="keys")
    priorities = tensor_from_proto(proto.priorities, shape=(len(keys),), what="priorities")
    if priorities.dtype not in (np.dtype("<f4"), np.dtype("<f8")):
        raise InvalidTensorError(
            f"priorities have dtype {priorities.dtype}; expected float32 or float64; convert them before sending"
        )
    return keys, priorities
