"""Returns over n steps inside trajectories, as a pure tensor function.

Names carry their time index, as in rlax: `v_tp1` is the value of the observation that follows step t. Single
transitions are folded by the replay buffer instead.
"""

import torch
from torch import Tensor


@torch.no_grad()
def n_step_returns(*, r_t: Tensor, discount_t: Tensor, continues_t: Tensor, v_tp1: Tensor, n: int) -> Tensor:
    """Computes the discounted sum of up to n rewards, and the value of the observation after them.

        G_t^(1) = r_t + discount_t V(x_{t+1})
        G_t^(k) = r_t + discount_t (G_{t+1}^(k-1) if continues_t, else V(x_{t+1}))

    So a return has fewer steps where the episode or the trajectory ends before.

    Args:
        r_t: float32 `[T, B]`, rewards.
        discount_t: float32 `[T, B]` in [0, 1], 0 where the episode terminated.
        continues_t: bool `[T, B]`, True if row t + 1 is the next step of the same episode. The last row is ignored.
        v_tp1: float32 `[T, B]`, value of the true next observation, which is the final one where the episode ended.
        n: The number of steps, at least 1.

    Returns:
        float32 `[T, B]`.
    """
    returns = torch.addcmul(r_t, discount_t, v_tp1)
    for _ in range(min(n, len(r_t)) - 1):
        following = torch.where(continues_t[:-1], returns[1:], v_tp1[:-1])
        returns = torch.cat([torch.addcmul(r_t[:-1], discount_t[:-1], following), returns[-1:]])
    return returns
