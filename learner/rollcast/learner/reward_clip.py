"""Clips rewards, for algorithms that learn from trajectories and for replay buffers."""

from dataclasses import replace

import torch
from torch import Tensor

from rollcast.learner.reward_bounds import RewardClip
from rollcast.services.rollouts.rollouts import Rollout


def clip_rewards(reward: Tensor, clip: RewardClip) -> Tensor:
    """Returns clipped rewards, float32 of any shape; the tensor itself with `"none"`.

    Args:
        reward: float32, of any shape; it is not changed.
        clip: unit: to [-1, 1], as in Mnih et al. 2015; soft_asymmetric: 5 tanh(r) for positive and 0.3 tanh(r) for
            negative rewards, as in Espeholt et al. 2018 for DMLab; none: no clipping.
    """
    if clip == "unit":
        return reward.clamp(-1.0, 1.0)
    if clip == "soft_asymmetric":
        squashed = reward.tanh()
        return torch.where(squashed > 0.0, 5.0 * squashed, 0.3 * squashed)
    return reward


def with_clipped_rewards(rollout: Rollout, clip: RewardClip) -> Rollout:
    """Returns the rollout with clipped rewards, or with `"none"` the rollout itself. The rollout is unchanged."""
    if clip == "none":
        return rollout
    return replace(rollout, reward=clip_rewards(torch.tensor(rollout.reward), clip).numpy())
