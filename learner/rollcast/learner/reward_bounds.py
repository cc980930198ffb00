"""The rewards that an algorithm can see after clipping and normalising. Imports no torch."""

import math
from typing import Final, Literal

RewardClip = Literal["none", "unit", "soft_asymmetric"]

# Bound of normalised rewards, that of SB3's VecNormalize.
MAX_NORMALIZED_REWARD: Final = 10.0


def clipped_reward(reward: float, clip: str) -> float:
    """Returns a clipped reward; see `clip_rewards`.

    Args:
        reward: The reward.
        clip: The way of clipping, a `RewardClip`. Other texts: no clipping.
    """
    if clip == "unit":
        return max(-1.0, min(1.0, reward))
    if clip == "soft_asymmetric":
        return (5.0 if reward > 0.0 else 0.3) * math.tanh(reward)
    return reward
