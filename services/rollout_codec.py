"""Rollouts as messages: whole, or as a header with deferred tensors and frames of their bytes."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rollcast.v1 import rollout_pb2, tensor_pb2

from services.rollout_assembler import MAX_FRAME_BYTES, RolloutAssembler
from services.rollouts import Observation, Rollout, SubstepColumns
from services.tensors import tensor_to_proto, wire_array

__all__ = ["INLINE_ROLLOUT_BYTES", "INLINE_TENSOR_BYTES", "MAX_FRAME_BYTES", "RolloutAssembler", "rollout_to_messages"]

# A rollout up to this size travels in one message: gRPC is fastest from 64 KiB to 1 MiB a message.
INLINE_ROLLOUT_BYTES: Final = 1 << 20
# In a larger rollout, tensors up to this size still travel in the header.
INLINE_TENSOR_BYTES: Final = 1 << 16


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
    encoder = _Encoder(rollout)
    yield rollout_pb2.StreamRolloutsRequest(rollout=encoder.header)
    offset = 0
    for content in _cut(encoder.deferred):
        yield rollout_pb2.StreamRolloutsRequest(
            frame=rollout_pb2.TensorFrame(sequence=rollout.sequence, offset=offset, data=content)
        )
        offset += len(content)


class _Encoder:
    """Makes the header and notes, in its order, what is deferred."""

    def __init__(self, rollout: Rollout) -> None:
        self.deferred: list[NDArray[Any]] = []
        self._rollout = rollout
        self._inline_limit = self._choose_inline_limit()
        n_final = len(rollout.final_index)
        self.header = rollout_pb2.Rollout(
            actor_id=rollout.actor_id,
            incarnation=rollout.incarnation,
            sequence=rollout.sequence,
            policy_version=rollout.policy_version,
            substeps=[self._substep(key, columns, n_final) for key, columns in rollout.substeps.items()],
            reward=self._tensor(rollout.reward, "reward"),
            terminated=self._tensor(rollout.terminated, "terminated"),
            truncated=self._tensor(rollout.truncated, "truncated"),
            valid=None if rollout.valid is None else self._tensor(rollout.valid, "valid"),
            final_index=self._tensor(rollout.final_index, "final_index") if n_final else None,
            episodes=[
                rollout_pb2.EpisodeStatistics(
                    env_index=episode.env_index, episode_return=episode.episode_return, n_steps=episode.n_steps
                )
                for episode in rollout.episodes
            ],
            env_seeds=rollout.env_seeds,
        )

    def _choose_inline_limit(self) -> int:
        """The size in bytes above which a tensor is deferred."""
        sizes = [array.nbytes for array in _arrays(self._rollout)]
        if sum(sizes) <= INLINE_ROLLOUT_BYTES:
            return INLINE_ROLLOUT_BYTES
        rest = sum(size for size in sizes if size <= INLINE_TENSOR_BYTES)
        return INLINE_TENSOR_BYTES if rest <= INLINE_ROLLOUT_BYTES else 0

    def _substep(self, key: str, columns: SubstepColumns, n_final: int) -> rollout_pb2.SubstepColumns:
        return rollout_pb2.SubstepColumns(
            key=key,
            observation=self._leaves(columns.observation, f"{key}/observation"),
            action=self._tensor(columns.action, f"{key}/action"),
            log_prob=self._tensor(columns.log_prob, f"{key}/log_prob"),
            last_observation=self._leaves(columns.last_observation, f"{key}/last_observation"),
            final_observation=self._leaves(columns.final_observation, f"{key}/final_observation") if n_final else (),
        )

    def _leaves(self, leaves: Observation, column: str) -> list[tensor_pb2.NamedTensor]:
        return [
            tensor_pb2.NamedTensor(path=path, tensor=self._tensor(array, f"{column}/{path}" if path else column))
            for path, array in leaves.items()
        ]

    def _tensor(self, array: NDArray[Any], column: str) -> tensor_pb2.Tensor:
        what = f"actor {self._rollout.actor_id!r}, rollout {self._rollout.sequence}: column {column}"
        deferred = array.nbytes > self._inline_limit
        if deferred:
            array = wire_array(array, what=what)
            self.deferred.append(array)
        return tensor_to_proto(array, deferred=deferred, what=what)


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
