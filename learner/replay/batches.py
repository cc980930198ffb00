"""From a sample to the batch that algorithms learn from, on the learner's device."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learner.batch import Batch, BatchColumns
from learner.replay.samples import ReplaySample, SampleColumns
from services.rollouts import Observation


def to_batch(sample: ReplaySample, device: torch.device | str) -> Batch:
    """Makes a batch of a sample.

    Transitions become trajectories of one step: T is 1, `last_observation` is the next observation (after the folded
    steps), and `final_index` is empty, because the next observation is the true one already. Rollouts and sequences
    are trajectories as they are.

    Args:
        sample: On the CPU; the batch shares its memory, so it stays valid as long as the sample does. On another
            device it is a copy, which is complete when the call returns.
        device: Where the batch is wanted.

    Returns:
        The batch. `log_prob` is NaN where the buffer keeps none; `episodes` is empty: their statistics were counted
        when they came in.
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
    )


def _columns(columns: SampleColumns, shape: tuple[int, ...], device: torch.device) -> BatchColumns:
    log_prob = columns.log_prob
    return BatchColumns(
        observation=_tensors(columns.observation, device),
        action=_tensor(columns.action, device),
        log_prob=torch.full(shape, torch.nan, device=device) if log_prob is None else _tensor(log_prob, device),
        last_observation=_tensors(columns.next_observation, device),
        final_observation=_tensors(columns.final_observation, device),
    )


def _tensors(leaves: Observation, device: torch.device) -> dict[str, Tensor]:
    return {path: _tensor(leaf, device) for path, leaf in leaves.items()}


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
