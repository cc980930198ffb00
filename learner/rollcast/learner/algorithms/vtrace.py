"""Targets and advantages as pure tensor functions: V-trace, and generalised advantage estimation as a special case.

V-trace: Espeholt et al. 2018, "IMPALA", https://arxiv.org/abs/1802.01561.

Names carry their time index, as in rlax: `v_t` is the value of the state in which step t acts, `v_tp1` the value of the
next state.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class VTraceReturns(NamedTuple):
    """The critic's targets and the policy's advantages.

    Attributes:
        vs: `[T, B]`, the targets v_s of the critic.
        pg_advantage: `[T, B]`, the factor of the policy gradient, including the truncated importance weight.
        advantage: `[T, B]`, like `pg_advantage` but without that weight.
    """

    vs: Tensor
    pg_advantage: Tensor
    advantage: Tensor


@torch.no_grad()
def vtrace(
    *,
    log_rho_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    continues_t: Tensor,
    v_t: Tensor,
    v_tp1: Tensor,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
    lambda_: float = 1.0,
    overridden_t: Tensor | None = None,
) -> VTraceReturns:
    """Computes the V-trace targets, and the advantages of the policy gradient.

    Equation 1 of the paper in the recursive form of its remark 1, with rho_t = min(clip_rho, pi/mu) and
    c_t = lambda * min(clip_c, pi/mu):

        delta_t = rho_t (r_t + discount_t V(x_{t+1}) - V(x_t))
        v_t - V(x_t) = delta_t + discount_t c_t continues_t (v_{t+1} - V(x_{t+1}))

    and the policy gradient of section 4.2, with rho_t = min(clip_pg_rho, pi/mu):

        advantage_t = rho_t (r_t + discount_t (V(x_{t+1}) + lambda continues_t (v_{t+1} - V(x_{t+1}))) - V(x_t))

    A truncated episode has `discount_t > 0` and `continues_t` False: its value is bootstrapped from the true final
    observation, and its trace ends. The trace also ends at the last step of the trajectory, for any `continues_t`.

    No gradient flows through the result. All tensors stay on the device of the arguments, and the host does not wait.

    Args:
        log_rho_t: float `[T, B]`, the action's log-probability under the policy in training minus the one under the
            policy that acted.
        r_t: float `[T, B]`, rewards.
        discount_t: float `[T, B]` in [0, 1], 0 where the episode terminated.
        continues_t: bool `[T, B]`, False where the episode ended with this step, by termination or truncation.
        v_t: float `[T, B]`, value of the observation in which step t acts.
        v_tp1: float `[T, B]`, value of the true next observation, which is the final one at the end of an episode.
        clip_rho: Upper bound of the importance weight in delta; it decides which policy's value is learnt.
        clip_c: Upper bound of the importance weight in the trace; it decides how fast the value is learnt.
        clip_pg_rho: Upper bound of the importance weight in the policy gradient.
        lambda_: Decay of corrections per step back in time, in [0, 1]; 1 in the paper, 0 is one-step TD.
        overridden_t: bool `[T, B]`, True where no policy chose the action. There pi/mu counts as 0, so that the target
            is V(x_t), and earlier traces end. None: nowhere.

    Returns:
        Targets and advantages, with and without the importance weight, each `[T, B]`.

    Raises:
        ValueError: If an argument is not of rank 2, the shapes differ, or `continues_t` is not bool.
    """
    _check_shapes(log_rho_t=log_rho_t, r_t=r_t, discount_t=discount_t, continues_t=continues_t, v_t=v_t, v_tp1=v_tp1)
    rho_t = log_rho_t.exp()
    if overridden_t is not None:
        rho_t = rho_t.masked_fill(overridden_t, 0.0)
    delta_t = rho_t.clamp(max=clip_rho) * torch.addcmul(r_t - v_t, discount_t, v_tp1)
    # discount_t, or 0 where the trace ends
    trace_t = discount_t * continues_t
    decay_t = rho_t.clamp(max=clip_c) * trace_t * lambda_

    vs_minus_v_t = discounted_sums(delta_t, decay_t[:-1])
    one_step_t = torch.addcmul(r_t, discount_t, v_tp1)
    corrected_t = torch.addcmul(one_step_t[:-1], trace_t[:-1], vs_minus_v_t[1:], value=lambda_)
    advantage = torch.cat([corrected_t, one_step_t[-1:]]) - v_t
    pg_advantage = rho_t.clamp(max=clip_pg_rho) * advantage
    return VTraceReturns(vs=vs_minus_v_t + v_t, pg_advantage=pg_advantage, advantage=advantage)


def discounted_sums(x_t: Tensor, decay_t: Tensor, *, forwards: bool = False) -> Tensor:
    """Computes y_t = x_t + decay_t y_{t+1}, with y_T = 0, in log2(T) rounds instead of T - 1 steps.

    Hillis and Steele 1986, "Data Parallel Algorithms", https://doi.org/10.1145/7902.7903: after a round, y_t covers
    twice as many steps, and decay_t is the product of their decays.

    Args:
        x_t: float `[T, ...]`.
        decay_t: float `[T - 1, ...]`, the decay between the steps t and t + 1.
        forwards: True for y_{t+1} = x_{t+1} + decay_t y_t, with y_0 = x_0.

    Returns:
        float `[T, ...]`.
    """
    y_t, n_covered = x_t, 1
    while n_covered < len(x_t):
        if n_covered > 1:
            half = n_covered // 2
            decay_t = decay_t[:-half] * decay_t[half:]
        if forwards:
            y_t = torch.cat([y_t[:n_covered], torch.addcmul(y_t[n_covered:], decay_t, y_t[:-n_covered])])
        else:
            y_t = torch.cat([torch.addcmul(y_t[:-n_covered], decay_t, y_t[n_covered:]), y_t[-n_covered:]])
        n_covered *= 2
    return y_t


class Gae(NamedTuple):
    """The policy's advantages and the critic's targets.

    Attributes:
        advantage: `[T, B]`, A_t.
        target: `[T, B]`, A_t + V(x_t), the TD(lambda) return.
    """

    advantage: Tensor
    target: Tensor


@torch.no_grad()
def gae(
    *,
    r_t: Tensor,
    discount_t: Tensor,
    continues_t: Tensor,
    v_t: Tensor,
    v_tp1: Tensor,
    lambda_: float = 0.95,
    overridden_t: Tensor | None = None,
) -> Gae:
    """Computes generalised advantages and targets, for trajectories of the policy in training.

    Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    https://arxiv.org/abs/1506.02438, equation 16, cut at the ends of episodes and of the trajectory:

        delta_t = r_t + discount_t V(x_{t+1}) - V(x_t)
        A_t = delta_t + discount_t lambda continues_t A_{t+1}

    This is V-trace with importance weights of 1; see `vtrace` for the arguments and the errors.

    Args:
        r_t: float `[T, B]`, rewards.
        discount_t: float `[T, B]` in [0, 1], 0 where the episode terminated.
        continues_t: bool `[T, B]`, False where the episode ended with this step.
        v_t: float `[T, B]`, value of the observation in which step t acts.
        v_tp1: float `[T, B]`, value of the true next observation, which is the final one at the end of an episode.
        lambda_: In [0, 1]: 0 is one-step TD, with low variance; 1 is the whole return, without bias.
        overridden_t: As for `vtrace`; the advantage is 0 there.
    """
    target = vtrace(
        log_rho_t=torch.zeros_like(r_t),
        r_t=r_t,
        discount_t=discount_t,
        continues_t=continues_t,
        v_t=v_t,
        v_tp1=v_tp1,
        lambda_=lambda_,
        overridden_t=overridden_t,
    ).vs
    return Gae(advantage=target - v_t, target=target)


def _check_shapes(**arguments: Tensor) -> None:
    shape = arguments["r_t"].shape
    for name, tensor in arguments.items():
        if tensor.dim() != 2:
            raise ValueError(f"{name} has rank {tensor.dim()} (shape {list(tensor.shape)}); expected [T, B].")
        if tensor.shape != shape:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}, r_t {list(shape)}; "
                "expected one shape [T, B] for all arguments."
            )
    if arguments["continues_t"].dtype != torch.bool:
        raise ValueError(f"continues_t is {arguments['continues_t'].dtype}; expected torch.bool.")
