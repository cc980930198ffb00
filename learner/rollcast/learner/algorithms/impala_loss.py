"""The loss of IMPALA as one expression.

Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
https://arxiv.org/abs/1802.01561, section 4.2: the policy gradient, the critic's squared error and the entropy bonus,
summed with coefficients.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class ImpalaLoss(NamedTuple):
    """The loss of a batch and its three terms, each 0-dim and with its graph.

    Attributes:
        total: policy + value_cost * value - entropy_cost * entropy.
        policy: The policy gradient's term.
        value: Half the critic's squared error.
        entropy: The policy's mean entropy in nats.
    """

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor


def impala_loss(
    *,
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    target: Tensor,
    advantage: Tensor,
    weight: Tensor,
    value_cost: float,
    entropy_cost: Tensor | float,
) -> ImpalaLoss:
    """Computes the loss of N = T * B steps.

    With the targets v and the advantages of `vtrace`, which are constants here:

        sum_t weight_t [ -advantage_t log pi(a_t | x_t)
                         + value_cost (V(x_t) - v_t)^2 / 2
                         - entropy_cost H(pi(. | x_t)) ]

    Section 4.2 of the paper gives the gradient of each of the three terms.

    Args:
        log_prob: float32 `[N]`, log pi(a_t | x_t) of the policy that learns.
        entropy: float32 `[N]`, H(pi(. | x_t)) in nats.
        value: float32 `[N]`, V(x_t) of the critic that learns.
        target: float32 `[N]`, v_t without gradient.
        advantage: float32 `[N]` without gradient; it includes the truncated importance weight.
        weight: float32 `[N]`, 1 / (number of valid steps) where a step is valid, 0 elsewhere.
        value_cost: Weight of the critic's term.
        entropy_cost: Weight of the entropy bonus.
    """
    error = value - target
    policy_loss = -torch.dot(weight * advantage, log_prob)
    value_loss = 0.5 * torch.dot(weight * error, error)
    mean_entropy = torch.dot(weight, entropy)
    total = policy_loss + value_cost * value_loss - entropy_cost * mean_entropy
    return ImpalaLoss(total, policy_loss, value_loss, mean_entropy)
