"""A replay buffer, as `ReplayService` serves it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.columns.memory import ColumnArray, host_array
from rollcast.learner.replay.columns.samples import ReplaySample, SampleRing
from rollcast.learner.replay.info import LimiterInfo
from rollcast.learner.replay.substeps import SubstepBuffers
from rollcast.services.errors import InvalidInputError, LimitExceededError
from rollcast.services.limits.limits import MAX_BATCH_BYTES
from rollcast.services.replay.replay import ReplayBatch, ReplayColumns, ReplayInfo, ReplayStatus, ReplayWaiting
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation


def replay_status(buffer: ReplayBuffer) -> ReplayStatus:
    """How a buffer stands, for the status of a learner. Any thread may ask."""
    info = buffer.info()
    return ReplayStatus(
        size=info.size,
        capacity=info.capacity,
        n_bytes=info.n_bytes,
        inserted=info.inserted,
        sampled=info.sampled,
        min_size=info.limiter.min_size,
        difference=info.limiter.difference,
        min_diff=info.limiter.min_diff,
        max_diff=info.limiter.max_diff,
        waiting=_waiting(info.limiter),
    )


class ServedReplay:
    """A buffer for others: a `rollcast.services.replay.service.ReplaySource`. Safe from any thread, as the buffer is.

    Args:
        buffer: The buffer; others may use it, too.
        spaces: What it holds, those of one substep.
        n_rollout_steps: T of the rollouts that it takes in.
    """

    def __init__(self, buffer: ReplayBuffer, spaces: EnvironmentSpaces, *, n_rollout_steps: int) -> None:
        self._buffer = buffer
        self._spaces = spaces
        self._n_rollout_steps = n_rollout_steps
        entry = _to_batch(buffer.make_ring(1, n_rooms=1).next_room().sample)
        self._entry_bytes = entry.n_bytes
        self._n_sample_steps = len(entry.reward)

    def info(self) -> ReplayInfo:
        """How the buffer stands."""
        info = self._buffer.info()
        limiter = info.limiter
        return ReplayInfo(
            size=info.size,
            capacity=info.capacity,
            n_bytes=info.n_bytes,
            inserted=info.inserted,
            sampled=info.sampled,
            ignored_updates=info.ignored_updates,
            min_size=limiter.min_size,
            difference=limiter.difference,
            min_diff=limiter.min_diff,
            max_diff=limiter.max_diff,
            waiting=_waiting(limiter),
            spaces=self._spaces,
            n_rollout_steps=self._n_rollout_steps,
            n_sample_steps=self._n_sample_steps,
            entry_bytes=self._entry_bytes,
        )

    def batches(self, batch_size: int) -> "ServedBatches":
        """Makes room for batches of one size.

        Raises:
            InvalidInputError: It is below 1.
            LimitExceededError: They are above 256 MiB.
        """
        if batch_size < 1:
            raise InvalidInputError(f"batch_size is {batch_size}; expected at least 1; raise it")
        if batch_size * self._entry_bytes > MAX_BATCH_BYTES:
            raise LimitExceededError(
                f"a batch of {batch_size} entries has {batch_size * self._entry_bytes} bytes; expected at most "
                f"{MAX_BATCH_BYTES}, which are {MAX_BATCH_BYTES // self._entry_bytes} entries; ask for a smaller batch",
                limit="max_batch_bytes",
            )
        return ServedBatches(self._buffer, self._buffer.make_ring(batch_size, n_rooms=1))

    def update_priorities(self, keys: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> int:
        """Sets priorities; returns how many were ignored.

        Raises:
            InvalidInputError: A priority cannot be right.
        """
        return self._buffer.update_priorities(keys, priorities)

    def reset(self) -> None:
        """Removes every entry."""
        self._buffer.reset()


class ServedBatches:
    """Batches for one stream: a `rollcast.services.replay.service.BatchSource`. For one thread.

    Args:
        buffer: Where they are drawn.
        ring: Where they are gathered.
    """

    def __init__(self, buffer: ReplayBuffer, ring: SampleRing) -> None:
        self._buffer = buffer
        self._ring = ring
        self._shown: tuple[ReplaySample, ReplayBatch] | None = None

    def next(self, *, timeout_s: float, is_active: Callable[[], bool]) -> ReplayBatch:
        """Draws a batch, valid until the next one, which is the same object where it has the same arrays.

        Raises:
            InvalidInputError: The buffer holds fewer entries, or its limiter never lets so many out.
            NotReadyError: No batch by then.
        """
        ring = self._ring
        sample = self._buffer.sample(ring.batch_size, ring=ring, timeout_s=timeout_s, is_active=is_active)
        if self._shown is None or self._shown[0] is not sample or sample.has_tensors:
            self._shown = sample, _to_batch(sample)
        return self._shown[1]


def serve_buffers(
    buffers: SubstepBuffers, spaces: EnvironmentSpaces, *, n_rollout_steps: int
) -> dict[str, ServedReplay]:
    """Each substep's buffer, for others.

    Args:
        buffers: By substep key.
        spaces: Likewise.
        n_rollout_steps: T of the rollouts that they take in.

    Returns:
        What `make_server` takes.
    """
    return {
        key: ServedReplay(buffer, {key: spaces[key]}, n_rollout_steps=n_rollout_steps)
        for key, buffer in buffers.items()
    }


def _waiting(limiter: LimiterInfo) -> tuple[ReplayWaiting, ...]:
    return tuple(ReplayWaiting(reason=one.reason, seconds=one.seconds, who=one.who) for one in limiter.waiting)


def _to_batch(sample: ReplaySample) -> ReplayBatch:
    """The same arrays, under the names of `services`; copies of those that are on the learner's device."""

    def leaves(observation: Mapping[str, ColumnArray]) -> Observation:
        return {path: host_array(leaf) for path, leaf in observation.items()}

    return ReplayBatch(
        keys=sample.keys,
        weights=sample.weights,
        n_steps=sample.n_steps,
        discount=sample.discount,
        substeps={
            key: ReplayColumns(
                observation=leaves(columns.observation),
                action=host_array(columns.action),
                log_prob=None if columns.log_prob is None else host_array(columns.log_prob),
                next_observation=leaves(columns.next_observation),
                final_observation=leaves(columns.final_observation),
            )
            for key, columns in sample.substeps.items()
        },
        reward=sample.reward,
        terminated=sample.terminated,
        truncated=sample.truncated,
        valid=sample.valid,
        final_index=sample.final_index,
        policy_version=sample.policy_version,
        burn_in=sample.burn_in,
    )
