"""Reads a replay buffer's batch as transitions, for off-policy algorithms."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rollcast.learner.algorithms.trajectories import columns_of
from rollcast.learner.batch import Batch
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicyHead, PolicySpec


class Transitions(NamedTuple):
    """B transitions of one substep.

    Attributes:
        observation: `[B, ...]` for every leaf of the observation space, in the form that networks see.
        action: `[B, ...]`, in the space's dtype.
        reward: float32 `[B]`, scaled.
        next_observation: `[B, ...]` for every leaf, the true next observation.
        discount: float32 `[B]`, the factor of the next observation's value; 0 where the episode terminated.
        weight: float32 `[B]`, the weight in the loss: the importance weight divided by B; 0 in invalid rows.
        n_learnt: B; 0 if no row is valid.
    """

    observation: Mapping[str, Tensor]
    action: Tensor
    reward: Tensor
    next_observation: Mapping[str, Tensor]
    discount: Tensor
    weight: Tensor
    n_learnt: int


@torch.no_grad()
def transitions_of(
    batch: Batch,
    substep_key: str,
    *,
    discount: float,
    reward_scale: float,
    normalized: Callable[[Mapping[str, Tensor], str], Mapping[str, Tensor]] = lambda observation, _key: observation,
) -> Transitions:
    """Reads the transitions of a batch.

    Args:
        batch: A batch with T = 1.
        substep_key: The substep whose columns to read.
        discount: The discount of one step, for batches without discounts.
        reward_scale: Factor of every reward.
        normalized: Normalises the observations of a substep; see `TorchPolicy.normalized`.

    Returns:
        The transitions; views of the batch where possible.

    Raises:
        ConfigurationError: If the batch holds other substeps, or trajectories of more than one step.
    """
    columns = columns_of(batch, substep_key)
    n_steps, n = batch.reward.shape
    if n_steps != 1:
        raise ConfigurationError(
            f"The batch holds trajectories of {n_steps} steps; expected transitions, of shape [1, B]. Draw them "
            "from a buffer whose entries are 'transitions' (with BaseDistributedWorkersWithBuffer: "
            "split_rollouts_into_transitions=True)."
        )
    reward = batch.reward[0] if reward_scale == 1.0 else batch.reward[0] * reward_scale
    continues = ~batch.terminated[0]
    weight = batch.valid[0] * (1.0 / n)
    return Transitions(
        observation=normalized({path: leaf[0] for path, leaf in columns.observation.items()}, substep_key),
        action=columns.action[0],
        reward=reward,
        next_observation=normalized(columns.last_observation, substep_key),
        discount=continues * (discount if batch.discount is None else batch.discount),
        weight=weight if batch.weights is None else weight.mul_(batch.weights),
        n_learnt=n if batch.n_env_steps else 0,
    )


def with_head(spec: PolicySpec, head: PolicyHead) -> PolicySpec:
    """Returns the architecture with the head that an algorithm needs; pass it to actors.

    Args:
        spec: An architecture with the default head, or with the needed one.
        head: The meaning of the outputs.

    Raises:
        ConfigurationError: If the spec has another head.
    """
    if spec.head not in ("default", head):
        raise ConfigurationError(
            f"The policy's head is {spec.head!r}; the algorithm needs {head!r} for this action space. Leave it at "
            "'default': the algorithm chooses it."
        )
    return dataclasses.replace(spec, head=head)
