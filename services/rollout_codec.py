"""Rollouts as messages: whole, or as a header with deferred tensors and frames of their bytes."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from rollcast.v1 import rollout_pb2, tensor_pb2

from services.rollout_assembler import MAX_FRAME_BYTES, RolloutAssembler
from services.rollouts import Observation, Rollout, SubstepColumns
from services.tensors import fill_tensor, wire_array

__all__ = ["INLINE_ROLLOUT_BYTES", "INLINE_TENSOR_BYTES", "MAX_FRAME_BYTES", "RolloutAssembler", "rollout_to_messages"]

# A rollout up to this size travels in one message: gRPC is fastest from 64 KiB to 1 MiB a message.
INLINE_ROLLOUT_BYTES: Final = 1 << 20
# In a larger rollout, tensors up to this size still travel in the header.
INLINE_TENSOR_BYTES: Final = 1 << 16


class _NamedTensors(Protocol):
    """A repeated NamedTensor field, whose container the stubs type only for checkers."""

    def add(self, *, path: str) -> tensor_pb2.NamedTensor: ...


def rollout_to_messages(rollout: Rollout) -> Iterator[rollout_pb2.StreamRolloutsRequest]:
    """Cuts a rollout into messages for one stream.

    Up to 1 MiB of tensors travel in one message. Of more, tensors above 64 KiB are deferred (all of them, when the rest
    is above 1 MiB still); their bytes follow in frames of exactly 1 MiB, the last one smaller, in the order the
    tensors appear in the message.

    Args:
        rollout: The rollout; its arrays must not change until the last message is taken.

    Yields:
        The rollout, then its frames.

    Raises:
        InvalidTensorError: A column has a dtype that is not on the whitelist.
    """
    request = rollout_pb2.StreamRolloutsRequest()
    deferred = _Encoder(rollout).fill(request.rollout)
    yield request
    offset = 0
    for content in _cut(deferred):
        request = rollout_pb2.StreamRolloutsRequest()
        request.frame.sequence = rollout.sequence
        request.frame.offset = offset
        request.frame.data = content
        yield request
        offset += len(content)


class _Encoder:
    """Fills the header in place and notes, in its order, what is deferred."""

    def __init__(self, rollout: Rollout) -> None:
        self._deferred: list[NDArray[Any]] = []
        self._rollout = rollout
        self._inline_limit = self._choose_inline_limit()
        self._what = f"actor {rollout.actor_id!r}, rollout {rollout.sequence}: column "

    def fill(self, header: rollout_pb2.Rollout) -> list[NDArray[Any]]:
        """Returns the deferred arrays."""
        rollout = self._rollout
        header.actor_id = rollout.actor_id
        header.incarnation = rollout.incarnation
        header.sequence = rollout.sequence
        header.policy_version = rollout.policy_version
        for key, columns in rollout.substeps.items():
            self._fill_substep(header.substeps.add(key=key), columns)
        self._fill(header.reward, rollout.reward, "reward")
        self._fill(header.terminated, rollout.terminated, "terminated")
        self._fill(header.truncated, rollout.truncated, "truncated")
        if rollout.valid is not None:
            self._fill(header.valid, rollout.valid, "valid")
        if len(rollout.final_index):
            self._fill(header.final_index, rollout.final_index, "final_index")
        for episode in rollout.episodes:
            header.episodes.add(
                env_index=episode.env_index, episode_return=episode.episode_return, n_steps=episode.n_steps
            )
        header.env_seeds.extend(rollout.env_seeds)
        return self._deferred

    def _choose_inline_limit(self) -> int:
        """The size in bytes above which a tensor is deferred."""
        sizes = [array.nbytes for array in _arrays(self._rollout)]
        if sum(sizes) <= INLINE_ROLLOUT_BYTES:
            return INLINE_ROLLOUT_BYTES
        rest = sum(size for size in sizes if size <= INLINE_TENSOR_BYTES)
        return INLINE_TENSOR_BYTES if rest <= INLINE_ROLLOUT_BYTES else 0

    def _fill_substep(self, proto: rollout_pb2.SubstepColumns, columns: SubstepColumns) -> None:
        key = proto.key
        self._fill_leaves(proto.observation, columns.observation, f"{key}/observation")
        self._fill(proto.action, columns.action, f"{key}/action")
        self._fill(proto.log_prob, columns.log_prob, f"{key}/log_prob")
        self._fill_leaves(proto.last_observation, columns.last_observation, f"{key}/last_observation")
        if len(self._rollout.final_index):
            self._fill_leaves(proto.final_observation, columns.final_observation, f"{key}/final_observation")

    def _fill_leaves(self, protos: _NamedTensors, leaves: Observation, column: str) -> None:
        for path, array in leaves.items():
            self._fill(protos.add(path=path).tensor, array, f"{column}/{path}" if path else column)

    def _fill(self, proto: tensor_pb2.Tensor, array: NDArray[Any], column: str) -> None:
        what = self._what + column
        deferred = array.nbytes > self._inline_limit
        if deferred:
            array = wire_array(array, what=what)
            self._deferred.append(array)
        fill_tensor(proto, array, deferred=deferred, what=what)


def _arrays(rollout: Rollout) -> Iterator[NDArray[Any]]:
    for columns in rollout.substeps.values():
        yield from columns.observation.values()
        yield from (columns.action, columns.log_prob)
        yield from columns.last_observation.values()
        yield from columns.final_observation.values()
    yield from (rollout.reward, rollout.terminated, rollout.truncated, rollout.final_index)
    if rollout.valid is not None:
        yield rollout.valid


def _cut(arrays: Sequence[NDArray[Any]]) -> Iterator[bytes]:
    """The concatenation of the arrays' bytes, in pieces of `MAX_FRAME_BYTES`, without ever building it."""
    pieces: list[memoryview] = []
    room = MAX_FRAME_BYTES
    for array in arrays:
        rest = memoryview(array.reshape(-1).view(np.uint8).data)
        while rest:
            pieces.append(rest[:room])
            room -= len(pieces[-1])
            rest = rest[len(pieces[-1]) :]
            if not room:
                yield b"".join(pieces)
                pieces, room = [], MAX_FRAME_BYTES
    if pieces:
        yield b"".join(pieces)
