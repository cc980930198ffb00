"""Turns samples of the buffer into batches for algorithms, on the learner's device."""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollcast.learner.batch import Batch, BatchColumns
from rollcast.learner.devices.copier import Copier, make_copier
from rollcast.learner.devices.staging import Staging, send_together
from rollcast.learner.replay.columns.memory import ColumnArray
from rollcast.learner.replay.columns.samples import ReplaySample, SampleColumns
from rollcast.services.columns.columns import common_fields

# Samples that may be on their way to the device at once.
_N_STAGINGS: Final = 2


def to_batch(sample: ReplaySample, device: torch.device | str) -> Batch:
    """Makes a complete batch of a sample; for many samples, `SampleBatcher` is faster.

    Args:
        sample: The sample. The batch is valid as long as the sample.
        device: The device for the batch.

    Returns:
        The batch; see `SampleBatcher`.
    """
    batcher = SampleBatcher(make_copier(device))
    batch = batcher.make(sample)
    batcher.wait()
    return batch


class SampleBatcher:
    """Makes batches of samples on the learner's device. For one thread.

    Transitions become trajectories of one step: T is 1, `last_observation` is the next observation (after the folded
    steps), and `final_index` is empty, because the next observation is already the true one. Rollouts and sequences
    remain trajectories. `log_prob` is NaN if the buffer keeps none. `episodes` is empty, because their statistics were
    counted when the rollouts arrived.

    A batch shares the memory of its sample's arrays on the device. On the CPU, these are all arrays; on a GPU, the
    columns of a buffer on the device. The other arrays are copied together through the copier's memory, asynchronously.

    Args:
        copier: Copies samples to the device.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._stagings = [Staging(copier) for _ in range(_N_STAGINGS)]
        self._next_staging = 0

    def make(self, sample: ReplaySample) -> Batch:
        """Makes a batch, for use on the current stream. The batch is valid as long as the sample."""
        sent = self._send(_host_arrays(sample))

        def tensor(array: ColumnArray) -> Tensor:
            return array.to(self._copier.device) if isinstance(array, Tensor) else sent[id(array)]

        def columns_of(columns: SampleColumns) -> BatchColumns:
            if columns.log_prob is not None:
                return columns.map(tensor, BatchColumns)
            unknown = torch.full(sample.reward.shape, torch.nan, device=self._copier.device)
            return columns.map(tensor, BatchColumns, log_prob=unknown)

        return Batch(
            substeps={key: columns_of(columns) for key, columns in sample.substeps.items()},
            reward=tensor(sample.reward),
            terminated=tensor(sample.terminated),
            truncated=tensor(sample.truncated),
            valid=tensor(sample.valid),
            final_index=tensor(sample.final_index),
            policy_version=sample.policy_version,
            n_env_steps=int(np.count_nonzero(sample.valid)),
            episodes=(),
            keys=sample.keys,
            weights=tensor(sample.weights),
            discount=tensor(sample.discount),
            burn_in=sample.burn_in,
        )

    def wait(self) -> None:
        """Waits until all batches are copied."""
        for staging in self._stagings:
            staging.wait()

    def _send(self, arrays: list[NDArray[np.generic]]) -> dict[int, Tensor]:
        """Begins to copy arrays from main memory; returns the device tensors by the `id` of each array."""
        if self._copier.shares_memory:
            return {id(array): torch.from_numpy(array) for array in arrays}
        staging = self._stagings[self._next_staging]
        self._next_staging = (self._next_staging + 1) % _N_STAGINGS
        for staged, array in zip(staging.open([(array.shape, array.dtype) for array in arrays]), arrays, strict=True):
            staged[...] = array
        (sent,), fence = send_together(self._copier, staging)
        fence.before_use()
        return {id(array): tensor for array, tensor in zip(arrays, sent, strict=True)}


def _host_arrays(sample: ReplaySample) -> list[NDArray[np.generic]]:
    """Lists the arrays in main memory that become tensors of a batch."""
    arrays: list[ColumnArray] = [*common_fields(sample), sample.weights, sample.discount]
    arrays += [array for columns in sample.substeps.values() for array in columns.flat()]
    return [array for array in arrays if isinstance(array, np.ndarray)]
