"""Distributions over actions, in torch: differentiable versions of `distributions`, for losses.

Parameters have the layout of `distributions`: logits, or means, then log standard deviations.
"""

from typing import Any

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
        z = (action.reshape(mean.shape).to(mean.dtype) - mean) * torch.exp(-log_std)
        return -(0.5 * z * z + log_std + HALF_LOG_TWO_PI).sum(dim=-1)
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
        return (_mean_and_log_std(parameters)[1] + 0.5 + HALF_LOG_TWO_PI).sum(dim=-1)
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


def _log_prob_at(log_p: Tensor, index: Tensor) -> Tensor:
    return log_p.gather(-1, index.to(torch.int64).unsqueeze(-1)).squeeze(-1)


def _categorical_entropy(log_p: Tensor) -> Tensor:
    return -(log_p.exp() * log_p).sum(dim=-1)


def _logits_of_elements(space: MultiDiscrete[Any], parameters: Tensor) -> tuple[Tensor, ...]:
    return torch.split(parameters, space.nvec.ravel().tolist(), dim=-1)


def _mean_and_log_std(parameters: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = parameters.chunk(2, dim=-1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
