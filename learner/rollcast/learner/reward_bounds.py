"""The largest rewards that an algorithm can see after clipping and normalising. Imports no torch."""

import math
from typing import Final, Literal

RewardClip = Literal["none", "unit", "soft_asymmetric"]

# Bound of normalised rewards, that of SB3's VecNormalize.
MAX_NORMALIZED_REWARD: Final = 10.0

# For each way of clipping: the largest factor of a small reward, and the largest clipped reward.
_STEEPEST_AND_LARGEST: Final[dict[str, tuple[float, float]]] = {
    "none": (1.0, math.inf),
    "unit": (1.0, 1.0),
    "soft_asymmetric": (5.0, 5.0),
}


def most_after_clipping(size: float, clip: str) -> float:
    """Returns an upper bound of the size of a clipped reward.

    Args:
        size: The reward's size, at least 0.
        clip: The way of clipping, a `RewardClip`.
    """
    steepest, largest = _STEEPEST_AND_LARGEST.get(clip, _STEEPEST_AND_LARGEST["none"])
    return min(steepest * size, largest)
