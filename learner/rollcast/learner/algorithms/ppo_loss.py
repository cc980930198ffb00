"""The loss of PPO as one expression.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", https://arxiv.org/abs/1707.06347, equations 7 and 9.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class PpoLoss(NamedTuple):
    """The terms of a minibatch's loss and the policy's change, each 0-dim; and the gradient of the loss.

    The loss is policy + value_cost * value - entropy_cost * entropy.

    Attributes:
        policy: The clipped surrogate's term.
        value: Half the critic's squared error.
        entropy: The policy's mean entropy in nats.
        approx_kl: An estimate of KL(policy that acted || policy in training) in nats.
        clip_fraction: The share of steps whose importance weight is outside the clip range.
        gradients: The gradients of the loss with respect to `log_prob`, `entropy` and `value`, each float32 `[N]`.
    """

    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    gradients: tuple[Tensor, Tensor, Tensor]


@torch.no_grad()
def ppo_loss(
    *,
    log_prob: Tensor,
    acted_log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    acted_value: Tensor,
    target: Tensor,
    advantage: Tensor,
    weight: Tensor,
    clip_range: Tensor | float,
    clip_range_value: float | None,
    value_cost: float,
    entropy_cost: Tensor | float,
    max_ratio: float = math.inf,
) -> PpoLoss:
    """Computes the loss of N steps, and its gradient by hand, which takes half of autograd's time.

    With the importance weight rho_t = pi(a_t | x_t) / mu(a_t | x_t) of the policy mu that acted:

        sum_t weight_t [ -min(rho_t A_t, clip(rho_t, 1 - clip_range, 1 + clip_range) A_t)
                         + value_cost (V(x_t) - target_t)^2 / 2
                         - entropy_cost H(pi(. | x_t)) ]

    With `clip_range_value`, the critic's term is the larger of two errors, as in the authors' code. One is the
    unclipped error. The other is the error of a value clipped to `clip_range_value` around the critic's value before
    the first pass.

    Importance weights above `max_ratio` are constants, so they have no effect where an advantage is negative. For
    negative advantages, the clip alone does not bound the loss (Ye et al. 2020, "Mastering Complex Control in MOBA
    Games with Deep Reinforcement Learning", https://arxiv.org/abs/1912.09729, equation 5).

    `approx_kl` is the mean of `kl_estimate`. No graph is made.

    Args:
        log_prob: float32 `[N]`, log pi(a_t | x_t) of the policy in training.
        acted_log_prob: float32 `[N]`, log mu(a_t | x_t).
        entropy: float32 `[N]`, H(pi(. | x_t)) in nats.
        value: float32 `[N]`, V(x_t) of the critic in training.
        acted_value: float32 `[N]`, V(x_t) before the first pass over the batch.
        target: float32 `[N]`, without gradient.
        advantage: float32 `[N]`, A_t without gradient.
        weight: float32 `[N]`, 1 / (number of valid steps) where a step is valid, 0 elsewhere.
        clip_range: The clip range, above 0.
        clip_range_value: The clip range of values, above 0, in their unit; None: no bound.
        value_cost: Weight of the critic's term.
        entropy_cost: Weight of the entropy bonus.
        max_ratio: A bound above 1 + clip_range; inf: no bound, as in PPO's paper.
    """
    # The ratio may overflow on a row without weight, such as padding, and infinity times 0 is NaN.
    unbounded_log_rho = torch.where(weight > 0.0, log_prob - acted_log_prob, 0.0)
    log_rho = unbounded_log_rho.clamp(max=math.log(max_ratio))
    rho = log_rho.exp()
    # torch's types allow floats or tensors, but not either.
    clipped = rho.clamp(1.0 - clip_range, 1.0 + clip_range)  # type: ignore[arg-type]
    free, bound = rho * advantage, clipped * advantage
    # The other steps are at a bound, where the loss does not change.
    learns = free <= bound
    if max_ratio < math.inf:
        learns &= unbounded_log_rho <= log_rho
    error = value - target
    weighted_error = weight * error
    value_loss = torch.dot(weighted_error, error)
    if clip_range_value is not None:
        near_error = acted_value + (value - acted_value).clamp(-clip_range_value, clip_range_value) - target
        is_near_larger = near_error.abs() > error.abs()
        # The clipped value is constant where its error is the larger one.
        weighted_error.masked_fill_(is_near_larger, 0.0)
        value_loss = torch.dot(weight, torch.where(is_near_larger, near_error, error).square())
    distance = rho - 1.0
    return PpoLoss(
        policy=-torch.dot(weight, torch.minimum(free, bound)),
        value=0.5 * value_loss,
        entropy=torch.dot(weight, entropy),
        approx_kl=torch.dot(weight, distance - log_rho),
        clip_fraction=torch.dot(weight, (distance.abs() > clip_range).to(weight.dtype)),
        gradients=(
            (weight * free).mul_(learns).neg_(),
            weight * -entropy_cost,
            weighted_error * value_cost,
        ),
    )


def kl_estimate(log_rho: Tensor) -> Tensor:
    """Estimates KL(mu || pi) in nats from each step: rho - 1 - log rho, which is never negative.

    Schulman 2020, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html, the estimator k3.

    Args:
        log_rho: float32 of any shape, log pi(a_t | x_t) - log mu(a_t | x_t) of an action drawn from mu.
    """
    return log_rho.exp() - 1.0 - log_rho
