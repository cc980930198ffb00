"""Computes the values of Discrete actions from a network's outputs, and the outputs' gradients, in torch."""

import torch
from torch import Tensor

from rollcast.services.policies.policies import PolicyHead


def action_values(outputs: Tensor, head: PolicyHead, allowed: Tensor | None = None) -> Tensor:
    """Computes the values of actions from a network's outputs.

    With `"dueling_q_values"` (Wang et al. 2016, https://arxiv.org/abs/1511.06581, equation 9):

        Q(s, a) = V(s) + A(s, a) - mean_b A(s, b)

    where b are the allowed actions.

    Args:
        outputs: float32 `[N, n]`, values; or `[N, 1 + n]`, the value of the observation, then the advantages.
        head: `"q_values"` or `"dueling_q_values"`.
        allowed: bool `[N, n]`; None: all actions are allowed.

    Returns:
        float32 `[N, n]`, also for forbidden actions.
    """
    if head != "dueling_q_values":
        return outputs
    advantages = outputs[:, 1:]
    if allowed is None:
        mean = advantages.mean(dim=1, keepdim=True)
    else:
        mean = (advantages * _shares(allowed)).sum(dim=1, keepdim=True)
    return advantages + (outputs[:, :1] - mean)


def outputs_gradient(
    index: Tensor, gradient: Tensor, n_actions: int, head: PolicyHead, allowed: Tensor | None = None
) -> Tensor:
    """Returns the gradient with respect to the outputs, from the gradient with respect to one action value per row.

    Args:
        index: int64 `[N]`, the index of the action.
        gradient: float32 `[N]`, the gradient with respect to the action's value.
        n_actions: n, the number of actions.
        head: `"q_values"` or `"dueling_q_values"`.
        allowed: bool `[N, n]`; None: all actions are allowed.

    Returns:
        float32 `[N, n]` or `[N, 1 + n]`.
    """
    column, value = index[:, None], gradient[:, None]
    if head != "dueling_q_values":
        return torch.zeros(len(index), n_actions, device=gradient.device).scatter_(1, column, value)
    # dQ_a / dV = 1, and dQ_a / dA_b = [a = b] - 1 / n; [a = b] - 0 if b is forbidden.
    if allowed is None:
        result = (value * (-1.0 / n_actions)).repeat(1, 1 + n_actions)
        result[:, :1] = value
    else:
        result = torch.cat([value, -value * _shares(allowed)], dim=1)
    return result.scatter_add_(1, column + 1, value)


def _shares(allowed: Tensor) -> Tensor:
    """Returns each action's weight in the mean over allowed actions: float32 `[N, n]`."""
    return allowed / allowed.sum(dim=1, keepdim=True)
