"""Generalised advantage estimation, for trajectories of the policy that learns.

Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
https://arxiv.org/abs/1506.02438.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rollcast.learner.algorithms.vtrace import vtrace


class Gae(NamedTuple):
    """The advantages of the policy and the targets of the critic.

    Attributes:
        advantage: `[T, B]`, A_t.
        target: `[T, B]`, A_t + V(x_t), the TD(lambda) return.
    """

    advantage: Tensor
    target: Tensor


@torch.no_grad()
def gae(
    *, r_t: Tensor, discount_t: Tensor, continues_t: Tensor, v_t: Tensor, v_tp1: Tensor, lambda_: float = 0.95
) -> Gae:
    """Computes advantages and targets.

    Equation 16 of the paper, cut at the ends of episodes and of the trajectory:

        delta_t = r_t + discount_t V(x_{t+1}) - V(x_t)
        A_t = delta_t + discount_t lambda continues_t A_{t+1}

    This is V-trace with importance weights of 1; see `vtrace` for the arguments and the errors.

    Args:
        r_t: float `[T, B]`, rewards.
        discount_t: float `[T, B]` in [0, 1], 0 where the episode terminated.
        continues_t: bool `[T, B]`, False where the episode ended with this step.
        v_t: float `[T, B]`, value of the observation in which step t acts.
        v_tp1: float `[T, B]`, value of the true next observation, which is the final one where the episode ended.
        lambda_: In [0, 1]: 0 is one-step TD, of low variance; 1 the whole return, without bias.
    """
    target = vtrace(
        log_rho_t=torch.zeros_like(r_t),
        r_t=r_t,
        discount_t=discount_t,
        continues_t=continues_t,
        v_t=v_t,
        v_tp1=v_tp1,
        lambda_=lambda_,
    ).vs
    return Gae(advantage=target - v_t, target=target)
