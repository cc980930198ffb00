"""Turns samples of the buffer into batches that algorithms learn from, on the learner's device."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rollcast.learner.batch import Batch, BatchColumns
from rollcast.learner.replay.columns.memory import ColumnArray
from rollcast.learner.replay.columns.samples import ReplaySample, SampleColumns


def to_batch(sample: ReplaySample, device: torch.device | str) -> Batch:
    """Makes a batch of a sample.

    Transitions become trajectories of one step: T is 1, `last_observation` is the next observation (after the folded
    steps), and `final_index` is empty, because the next observation is the true one already. Rollouts and sequences
    stay trajectories as they are.

    Args:
        sample: The sample. The batch shares the memory of its arrays that are on the device already: on the CPU all of
            them, on another device the columns of a buffer that keeps them there. So the batch stays valid as long as
            the sample. The other arrays are copied, completely before the call returns.
        device: The device for the batch.

    Returns:
        The batch. `log_prob` is NaN if the buffer keeps none; `episodes` is empty, because the episodes' statistics
        were counted when the rollouts arrived.
    """
    device = torch.device(device)
    return Batch(
        substeps={key: _columns(columns, sample.reward.shape, device) for key, columns in sample.substeps.items()},
        reward=_tensor(sample.reward, device),
        terminated=_tensor(sample.terminated, device),
        truncated=_tensor(sample.truncated, device),
        valid=_tensor(sample.valid, device),
        final_index=_tensor(sample.final_index, device),
        policy_version=sample.policy_version,
        n_env_steps=int(np.count_nonzero(sample.valid)),
        episodes=(),
        keys=sample.keys,
        weights=_tensor(sample.weights, device),
        discount=_tensor(sample.discount, device),
        burn_in=sample.burn_in,
    )


def _columns(columns: SampleColumns, shape: tuple[int, ...], device: torch.device) -> BatchColumns:
    log_prob = columns.log_prob
    return BatchColumns(
        observation=_tensors(columns.observation, device),
        action=_tensor(columns.action, device),
        log_prob=torch.full(shape, torch.nan, device=device) if log_prob is None else _tensor(log_prob, device),
        last_observation=_tensors(columns.next_observation, device),
        final_observation=_tensors(columns.final_observation, device),
        initial_state=None if columns.initial_state is None else _tensor(columns.initial_state, device),
        previous_observation=None
        if columns.previous_observation is None
        else _tensors(columns.previous_observation, device),
    )


def _tensors(leaves: Mapping[str, ColumnArray], device: torch.device) -> dict[str, Tensor]:
    return {path: _tensor(leaf, device) for path, leaf in leaves.items()}


def _tensor(array: ColumnArray, device: torch.device) -> Tensor:
    return (array if isinstance(array, Tensor) else torch.from_numpy(array)).to(device)
