"""Clips rewards, for algorithms that learn from trajectories and for replay buffers."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from rollcast.services.rollouts.rollouts import Rollout

RewardClip = Literal["none", "unit", "soft_asymmetric"]


def clip_rewards(reward: Tensor, clip: RewardClip) -> Tensor:
    """Returns clipped rewards, float32 of any shape; the tensor itself with `"none"`.

    Args:
        reward: float32, of any shape; it is not changed.
        clip: unit: to [-1, 1], as Mnih et al. 2015 do; soft_asymmetric: 5 tanh(r) for positive and 0.3 tanh(r) for
            negative rewards, as Espeholt et al. 2018 do for DMLab; none: not at all.
    """
    if clip == "unit":
        return reward.clamp(-1.0, 1.0)
    if clip == "soft_asymmetric":
        squashed = reward.tanh()
        return torch.where(squashed > 0.0, 5.0 * squashed, 0.3 * squashed)
    return reward


def with_clipped_rewards(rollout: Rollout, clip: RewardClip) -> Rollout:
    """Returns the rollout with clipped rewards; itself with `"none"`. Its array is not changed."""
    if clip == "none":
        return rollout
    return replace(rollout, reward=clip_rewards(torch.tensor(rollout.reward), clip).numpy())
