"""Adapts a replay buffer to `ReplayService`, for learners in other processes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollcast.actor.policies.frame_stacks import stacked_space
from rollcast.learner.devices.copier import Copier, make_copier
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.columns.memory import ColumnArray
from rollcast.learner.replay.columns.samples import ReplaySample, SampleRing
from rollcast.learner.replay.info import BufferInfo
from rollcast.learner.replay.substeps import SubstepBuffers
from rollcast.services.errors import InvalidInputError, LimitExceededError
from rollcast.services.limits.limits import MAX_BATCH_BYTES
from rollcast.services.replay.replay import ReplayBatch, ReplayColumns, ReplayInfo, ReplayStatus
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.services.wire.same_fields import same_fields

_fields_beside_columns: Final = same_fields(ReplayBatch, but=("substeps",))


def replay_status(buffer: ReplayBuffer) -> ReplayStatus:
    """Returns the state of a buffer, for a learner's status. Thread-safe."""
    return ReplayStatus(**_status_fields(buffer.info()))


class ServedReplay:
    """A `rollcast.services.replay.service.ReplaySource` over one buffer. Thread-safe.

    Args:
        buffer: The buffer; other objects may use it, too.
        spaces: The spaces of its substep. With a frame stack, `info` has the spaces of stacked observations.
        n_rollout_steps: T of the inserted rollouts.
        copier_for: Makes a copier from the buffer's device for each stream of batches.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        spaces: EnvironmentSpaces,
        *,
        n_rollout_steps: int,
        copier_for: Callable[[torch.device], Copier] = make_copier,
    ) -> None:
        self._buffer = buffer
        k = buffer.frame_stack if buffer.entry == "transitions" else 1
        self._spaces = {
            key: replace(substep, observation=stacked_space(substep.observation, k)) for key, substep in spaces.items()
        }
        self._n_rollout_steps = n_rollout_steps
        sample = buffer.make_ring(1, n_rooms=1).next_room().sample
        (columns,) = sample.substeps.values()
        self._device = columns.action.device if isinstance(columns.action, Tensor) else torch.device("cpu")
        self._copier_for = copier_for
        entry = _to_batch(sample, copier_for(self._device))
        self._entry_bytes = entry.n_bytes
        self._n_sample_steps = len(entry.reward)

    def info(self) -> ReplayInfo:
        """Returns the state of the buffer, and the information that clients need to read its batches."""
        info = self._buffer.info()
        return ReplayInfo(
            **_status_fields(info),
            ignored_updates=info.ignored_updates,
            spaces=self._spaces,
            n_rollout_steps=self._n_rollout_steps,
            n_sample_steps=self._n_sample_steps,
            entry_bytes=self._entry_bytes,
        )

    def batches(self, batch_size: int) -> "ServedBatches":
        """Allocates arrays for batches of one size, and returns a source of such batches.

        Raises:
            InvalidInputError: `batch_size` is below 1.
            LimitExceededError: Batches would be larger than 256 MiB.
        """
        if batch_size < 1:
            raise InvalidInputError(f"batch_size is {batch_size}; expected at least 1; raise it")
        if batch_size * self._entry_bytes > MAX_BATCH_BYTES:
            raise LimitExceededError(
                f"a batch of {batch_size} entries has {batch_size * self._entry_bytes} bytes; expected at most "
                f"{MAX_BATCH_BYTES}, which are {MAX_BATCH_BYTES // self._entry_bytes} entries; ask for a smaller batch",
                limit="max_batch_bytes",
            )
        ring = self._buffer.make_ring(batch_size, n_rooms=1)
        return ServedBatches(self._buffer, ring, self._copier_for(self._device))

    def update_priorities(self, keys: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> int:
        """Sets priorities. Returns the number of keys whose entries the buffer has removed.

        Raises:
            InvalidInputError: A priority is negative, NaN or above 1e100.
        """
        return self._buffer.update_priorities(keys, priorities)

    def reset(self) -> None:
        """Removes every entry."""
        self._buffer.reset()


class ServedBatches:
    """A `rollcast.services.replay.service.BatchSource`: the batches of one stream. For one thread.

    Args:
        buffer: The buffer to draw from.
        ring: The arrays for the batches.
        copier: Copies batches from the buffer's device; for this stream only.
    """

    def __init__(self, buffer: ReplayBuffer, ring: SampleRing, copier: Copier) -> None:
        self._buffer = buffer
        self._ring = ring
        self._copier = copier
        self._shown: tuple[ReplaySample, ReplayBatch] | None = None

    def next(self, *, timeout_s: float, is_active: Callable[[], bool]) -> ReplayBatch:
        """Draws a batch. The batch stays valid until the next call, which may return the same object.

        Raises:
            InvalidInputError: The buffer has fewer entries than the batch, or its limiter can never accept it.
            NotReadyError: The limiter did not accept a batch within `timeout_s`.
        """
        ring = self._ring
        sample = self._buffer.sample(ring.batch_size, ring=ring, timeout_s=timeout_s, is_active=is_active)
        if self._shown is None or self._shown[0] is not sample or sample.has_tensors:
            self._shown = sample, _to_batch(sample, self._copier)
        return self._shown[1]


def serve_buffers(
    buffers: SubstepBuffers, spaces: EnvironmentSpaces, *, n_rollout_steps: int
) -> dict[str, ServedReplay]:
    """Makes the source of each substep's buffer.

    Args:
        buffers: Buffers by substep key.
        spaces: Spaces by substep key.
        n_rollout_steps: T of the inserted rollouts.

    Returns:
        Sources by substep key, for `make_server`.
    """
    return {
        key: ServedReplay(buffer, {key: spaces[key]}, n_rollout_steps=n_rollout_steps)
        for key, buffer in buffers.items()
    }


def _status_fields(info: BufferInfo) -> dict[str, Any]:
    """Returns the fields that `ReplayStatus` and `ReplayInfo` share."""
    limiter = info.limiter
    names = ("size", "capacity", "n_bytes", "inserted", "sampled")
    limits = ("min_size", "difference", "min_diff", "max_diff", "waiting")
    return {name: getattr(info, name) for name in names} | {name: getattr(limiter, name) for name in limits}


def _to_batch(sample: ReplaySample, copier: Copier) -> ReplayBatch:
    """Returns a sample as a `ReplayBatch`; arrays on the learner's device are copied to main memory.

    All copies run concurrently with each other and with the trainer's work: only this thread waits for them.
    """

    def host_array(array: ColumnArray) -> NDArray[Any]:
        if not isinstance(array, Tensor):
            return array
        if not array.numel():  # nothing to copy, and memory of no bytes cannot be seen as numbers
            return np.empty(tuple(array.shape), torch.empty(0, dtype=array.dtype).numpy().dtype)
        source = array.detach().contiguous()
        memory = copier.host_memory(source.numel() * source.element_size()).view(source.dtype).view(source.shape)
        copied: NDArray[Any] = copier.send(source, to=memory).numpy()
        return copied

    batch = ReplayBatch(
        **_fields_beside_columns(sample),
        substeps={key: columns.map(host_array, ReplayColumns) for key, columns in sample.substeps.items()},
    )
    copier.fence().wait()
    return batch
