"""Merges the observations that training takes into the moments of the policy, each step once.

The moments are those of the transitions only: rows after the end of an episode, and rows before all transitions of a
trajectory, do not count, nor do the observations after the last step.
"""

import numpy as np
import torch

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.batch import Batch
from rollcast.services.rollouts.rollouts import Rollout


def observe_batch(policy: TorchPolicy, batch: Batch) -> None:
    """Merges a batch of fresh trajectories; nothing happens if the policy does not normalise.

    Call it after the update, so that the update sees observations as the actors did.

    Args:
        policy: The policy that learns.
        batch: Trajectories `[T, B, ...]` on its device.
    """
    for key, columns in batch.substeps.items():
        policy.observe(columns.observation, batch.valid, batch.n_env_steps, key)


def observe_rollout(policy: TorchPolicy, rollout: Rollout) -> None:
    """Merges a rollout that enters a replay buffer; nothing happens if the policy does not normalise.

    Args:
        policy: The policy that learns.
        rollout: The rollout, in main memory.
    """
    if not policy.spec.normalize_observations:
        return
    device = next(policy.parameters()).device
    valid = np.ones(rollout.reward.shape, np.bool_) if rollout.valid is None else rollout.valid.copy()
    for key, columns in rollout.substeps.items():
        # Copies, because torch warns of read-only arrays, as those that came over the wire are.
        observation = {path: torch.from_numpy(leaf.copy()).to(device) for path, leaf in columns.observation.items()}
        policy.observe(observation, torch.from_numpy(valid).to(device), rollout.n_env_steps, key)
