"""A replay buffer's batch, as algorithms that learn from transitions read it."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rollcast.learner.batch import Batch
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicyHead, PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces


class Transitions(NamedTuple):
    """B transitions of one substep.

    Attributes:
        observation: `[B, ...]` for every leaf of the observation space.
        action: `[B, ...]`, in the space's dtype.
        reward: float32 `[B]`, scaled.
        next_observation: `[B, ...]` for every leaf, the true observation that it led to.
        discount: float32 `[B]`, of the value of the next observation; 0 where the episode terminated.
        weight: float32 `[B]`, of each transition in the loss: its importance weight over B, 0 where it is none.
    """

    observation: Mapping[str, Tensor]
    action: Tensor
    reward: Tensor
    next_observation: Mapping[str, Tensor]
    discount: Tensor
    weight: Tensor


@torch.no_grad()
def transitions_of(batch: Batch, substep_key: str, *, discount: float, reward_scale: float) -> Transitions:
    """Reads a batch.

    Args:
        batch: With T = 1.
        substep_key: Whose columns.
        discount: Of one step, for batches that bring none.
        reward_scale: Factor of every reward.

    Returns:
        Its transitions; views of the batch where nothing is computed.

    Raises:
        ConfigurationError: If the batch holds other substeps, or trajectories of more than one step.
    """
    if batch.substeps.keys() != {substep_key}:
        raise ConfigurationError(
            f"The batch holds the substeps {sorted(batch.substeps)}; expected [{substep_key!r}], for which this "
            "algorithm was made. Give it batches of the environment whose spaces it was given."
        )
    n_steps, n = batch.reward.shape
    if n_steps != 1:
        raise ConfigurationError(
            f"The batch holds trajectories of {n_steps} steps; expected transitions, of shape [1, B]. Draw them "
            "from a buffer whose entries are 'transitions' (with BaseDistributedWorkersWithBuffer: "
            "split_rollouts_into_transitions=True)."
        )
    columns = batch.substeps[substep_key]
    reward = batch.reward[0] if reward_scale == 1.0 else batch.reward[0] * reward_scale
    continues = ~batch.terminated[0]
    weight = batch.valid[0] * (1.0 / n)
    return Transitions(
        observation={path: leaf[0] for path, leaf in columns.observation.items()},
        action=columns.action[0],
        reward=reward,
        next_observation=columns.last_observation,
        discount=continues * (discount if batch.discount is None else batch.discount),
        weight=weight if batch.weights is None else weight.mul_(batch.weights),
    )


def only_substep(spaces: EnvironmentSpaces, *, algorithm: str) -> str:
    """The key of an environment's one substep.

    Args:
        spaces: The environment's spaces by substep key.
        algorithm: For the message.

    Returns:
        The key.

    Raises:
        ConfigurationError: If there is not exactly one.
    """
    if len(spaces) != 1:
        raise ConfigurationError(
            f"The environment has {len(spaces)} substeps {sorted(spaces)}; {algorithm} supports exactly 1. Give each "
            "substep a learner of its own, with IndependentLearners."
        )
    return next(iter(spaces))


def with_head(spec: PolicySpec, head: PolicyHead) -> PolicySpec:
    """The architecture with the head that an algorithm needs.

    Args:
        spec: With the default head, or this one.
        head: What the outputs have to mean.

    Returns:
        The architecture, as actors have to be told it.

    Raises:
        ConfigurationError: If the spec has yet another head.
    """
    if spec.head not in ("default", head):
        raise ConfigurationError(
            f"The policy's head is {spec.head!r}; the algorithm needs {head!r} for this action space. Leave it at "
            "'default', and the algorithm chooses."
        )
    return dataclasses.replace(spec, head=head)
