"""Distributions over actions, in torch: differentiable versions of `distributions`, for losses.

Parameters have the layout of `distributions`: logits, or means, then log standard deviations.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor

from rollcast.actor.policies.distributions import HALF_LOG_TWO_PI, LOG_STD_MAX, LOG_STD_MIN, unsupported_actions
from rollcast.actor.policies.torch_constants import constant


def log_prob(space: Space[Any], parameters: Tensor, action: Tensor) -> Tensor:
    """Returns the log-probability (for Box: log-density) of actions.

    Args:
        space: The action space.
        parameters: float32 `[..., P]`.
        action: `[..., ...]`, in the space's dtype.

    Returns:
        float32 `[...]`.

    Raises:
        InvalidSpaceError: If the space is not supported.
    """
    if isinstance(space, Discrete):
        return _log_prob_at(F.log_softmax(parameters, dim=-1), action - int(space.start))
    if isinstance(space, MultiDiscrete):
        start = constant(tuple(space.start.ravel().tolist()), action.device)
        index = action.reshape(*parameters.shape[:-1], -1) - start
        parts = enumerate(_logits_of_elements(space, parameters))
        return torch.stack([_log_prob_at(F.log_softmax(part, dim=-1), index[..., i]) for i, part in parts]).sum(dim=0)
    if isinstance(space, MultiBinary):
        one = action.reshape(parameters.shape).to(parameters.dtype)
        return -F.binary_cross_entropy_with_logits(parameters, one, reduction="none").sum(dim=-1)
    if isinstance(space, Box):
        mean, log_std = _mean_and_log_std(parameters)
        return _gaussian_log_prob((action.reshape(mean.shape).to(mean.dtype) - mean) * torch.exp(-log_std), log_std)
    raise unsupported_actions(space)


def entropy(space: Space[Any], parameters: Tensor) -> Tensor:
    """Returns the entropy in nats; for Box the differential entropy, which may be negative.

    Args:
        space: The action space.
        parameters: float32 `[..., P]`.

    Returns:
        float32 `[...]`.

    Raises:
        InvalidSpaceError: If the space is not supported.
    """
    if isinstance(space, Discrete):
        return _categorical_entropy(F.log_softmax(parameters, dim=-1))
    if isinstance(space, MultiDiscrete):
        parts = _logits_of_elements(space, parameters)
        return torch.stack([_categorical_entropy(F.log_softmax(part, dim=-1)) for part in parts]).sum(dim=0)
    if isinstance(space, MultiBinary):
        # H = softplus(l) - l sigmoid(l), from -p log p - (1 - p) log(1 - p) with p = sigmoid(l).
        return (F.softplus(parameters) - parameters * torch.sigmoid(parameters)).sum(dim=-1)
    if isinstance(space, Box):
        return _gaussian_entropy(_mean_and_log_std(parameters)[1])
    raise unsupported_actions(space)


def log_prob_and_entropy(space: Space[Any], parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of actions and the entropy, with a single softmax for a Discrete space.

    Args:
        space: The action space.
        parameters: float32 `[..., P]`.
        action: `[..., ...]`, in the space's dtype.

    Returns:
        Log-probability and entropy, each float32 `[...]`.

    Raises:
        InvalidSpaceError: If the space is not supported.
    """
    if isinstance(space, Discrete):
        log_p = F.log_softmax(parameters, dim=-1)
        return _log_prob_at(log_p, action - int(space.start)), _categorical_entropy(log_p)
    return log_prob(space, parameters, action), entropy(space, parameters)


class Differentiated(NamedTuple):
    """The log-probability and the entropy of actions, with their gradient by hand, without autograd graphs.

    Attributes:
        log_prob: float32 `[N]`.
        entropy: float32 `[N]`.
        gradient: Returns the gradient of a loss with respect to the parameters, float32 `[N, P]`. The arguments are its
            gradients with respect to `log_prob` and `entropy`, each float32 `[N]`.
    """

    log_prob: Tensor
    entropy: Tensor
    gradient: Callable[[Tensor, Tensor], Tensor]


def _differentiated_categorical(space: Discrete, parameters: Tensor, action: Tensor) -> Differentiated:
    log_p = F.log_softmax(parameters, dim=-1)
    p = log_p.exp()
    entropy = (p * log_p).sum(dim=-1).neg_()
    index = (action - int(space.start)).to(torch.int64)

    def gradient(of_log_prob: Tensor, of_entropy: Tensor) -> Tensor:
        # d log p_a / d l_j = [j = a] - p_j, and d H / d l_j = -p_j (log p_j + H)
        of_log_prob = of_log_prob.unsqueeze(-1)
        rest = (log_p + entropy.unsqueeze(-1)).mul_(of_entropy.unsqueeze(-1)).add_(of_log_prob).mul_(p).neg_()
        return rest.scatter_add_(-1, index.unsqueeze(-1), of_log_prob)

    return Differentiated(_log_prob_at(log_p, index), entropy, gradient)


def _differentiated_gaussian(space: Box, parameters: Tensor, action: Tensor) -> Differentiated:
    mean, log_std = _mean_and_log_std(parameters)
    inverse_std = torch.exp(-log_std)
    z = (action.reshape(mean.shape).to(mean.dtype) - mean) * inverse_std

    def gradient(of_log_prob: Tensor, of_entropy: Tensor) -> Tensor:
        # d log p / d mean = z / std, d log p / d log std = z^2 - 1, d H / d log std = 1
        of_log_prob, of_entropy = of_log_prob.unsqueeze(-1), of_entropy.unsqueeze(-1)
        raw = parameters[..., mean.shape[-1] :]
        of_log_std = ((z.square() - 1.0) * of_log_prob + of_entropy).mul_((raw >= LOG_STD_MIN) & (raw <= LOG_STD_MAX))
        return torch.cat([z * inverse_std * of_log_prob, of_log_std], dim=-1)

    return Differentiated(_gaussian_log_prob(z, log_std), _gaussian_entropy(log_std), gradient)


# `log_prob_and_entropy` with the gradient by hand, for the spaces that are simple enough. The arguments are the same,
# with parameters `[N, P]`; call it without autograd.
DIFFERENTIATED: Final[Mapping[type[Space[Any]], Callable[[Any, Tensor, Tensor], Differentiated]]] = {
    Discrete: _differentiated_categorical,
    Box: _differentiated_gaussian,
}


def _log_prob_at(log_p: Tensor, index: Tensor) -> Tensor:
    return log_p.gather(-1, index.to(torch.int64).unsqueeze(-1)).squeeze(-1)


def _categorical_entropy(log_p: Tensor) -> Tensor:
    return -(log_p.exp() * log_p).sum(dim=-1)


def _logits_of_elements(space: MultiDiscrete[Any], parameters: Tensor) -> tuple[Tensor, ...]:
    return torch.split(parameters, space.nvec.ravel().tolist(), dim=-1)


def _gaussian_log_prob(z: Tensor, log_std: Tensor) -> Tensor:
    """Returns the log-density of actions that lie z standard deviations from their means, `[..., D]` -> `[...]`."""
    return -(0.5 * z * z + log_std + HALF_LOG_TWO_PI).sum(dim=-1)


def _gaussian_entropy(log_std: Tensor) -> Tensor:
    return (log_std + 0.5 + HALF_LOG_TWO_PI).sum(dim=-1)


def _mean_and_log_std(parameters: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = parameters.chunk(2, dim=-1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
