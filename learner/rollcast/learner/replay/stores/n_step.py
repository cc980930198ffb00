"""Folds n steps into one transition at the time of sampling.

Sutton and Barto 2018, "Reinforcement Learning", section 7.1; in replay, Hessel et al. 2018, "Rainbow",
https://arxiv.org/abs/1710.02298.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.steps import STEP


class FoldedSteps(NamedTuple):
    """Steps folded into transitions.

    Attributes:
        reward: float64 `[B]`, the sum of gamma^k r_k for k < m.
        n_steps: int64 `[B]`, m, the number of steps folded.
        last: int64 `[B]`, the row of the last of the m steps; the next row has the next observation.
    """

    reward: NDArray[np.float64]
    n_steps: NDArray[np.int64]
    last: NDArray[np.int64]


def fold_n_step(
    rows: NDArray[np.int64],
    *,
    n_step: int,
    discount: float,
    reward: NDArray[np.float32],
    flags: NDArray[np.uint8],
) -> FoldedSteps:
    """Folds every step with up to n - 1 following steps.

    A step is the last one if the next row is not a step. At the end of an episode, that row has the final observation.
    At the end of a trajectory, that row has the observation after the last step.

    Args:
        rows: int64 `[B]`, rows of a ring that are steps.
        n_step: n, at least 1.
        discount: gamma.
        reward: float32 `[n_rows]`, the rewards of the ring.
        flags: uint8 `[n_rows]`, the flags of the ring.
    """
    total = reward.take(rows).astype(np.float64)
    n_steps = np.ones(len(rows), np.int64)
    last = rows.copy()
    goes_on = np.ones(len(rows), np.bool_)
    for k in range(1, n_step):
        following = last + 1
        following[following == len(flags)] = 0
        goes_on &= (flags.take(following) & STEP) != 0
        if not goes_on.any():
            break
        total += np.where(goes_on, reward.take(following) * discount**k, 0.0)
        n_steps += goes_on
        last = np.where(goes_on, following, last)
    return FoldedSteps(total, n_steps, last)
