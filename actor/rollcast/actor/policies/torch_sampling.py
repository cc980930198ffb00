"""Samples actions in torch, on the device of their distributions, without waiting for the device."""

from typing import Any

import torch
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor

from rollcast.actor.policies.distributions import LOG_STD_MAX, LOG_STD_MIN, unsupported_actions
from rollcast.actor.policies.torch_constants import constant


def sample(space: Space[Any], parameters: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws an action from each distribution of the default head.

    A categorical action is the argmax of the logits plus Gumbel noise (the Gumbel-max trick).

    Args:
        space: The action space.
        parameters: float32 `[B, P]`, in the layout of `distributions`.
        generator: A generator of the parameters' device; None: greedy actions.

    Returns:
        `[B, *shape]` in the space's dtype, on the parameters' device.

    Raises:
        InvalidSpaceError: If the space is not supported.
    """
    if isinstance(space, Discrete):
        return _categorical(parameters, generator) + int(space.start)
    if isinstance(space, MultiDiscrete):
        parts = torch.split(parameters, space.nvec.ravel().tolist(), dim=-1)
        index = torch.stack([_categorical(part, generator) for part in parts], dim=-1)
        start = constant(tuple(space.start.ravel().tolist()), parameters.device)
        return (index + start).reshape(-1, *space.shape).to(_dtype(space))
    if isinstance(space, MultiBinary):
        # P(1) = sigmoid(l), and logit(U) is below l with this probability
        threshold = torch.zeros_like(parameters)
        if generator is not None:
            threshold = torch.logit(_uniform(parameters, generator))
        return (parameters > threshold).reshape(-1, *space.shape).to(_dtype(space))
    if isinstance(space, Box):
        mean, log_std = parameters.chunk(2, dim=-1)
        if generator is not None:
            noise = torch.empty_like(mean).normal_(generator=generator)
            mean = mean + log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp() * noise
        return mean.reshape(-1, *space.shape).to(_dtype(space))
    raise unsupported_actions(space)


def _categorical(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return logits.argmax(dim=-1)
    # the negative logarithm of an exponential number is a Gumbel number
    return (logits - torch.empty_like(logits).exponential_(generator=generator).log()).argmax(dim=-1)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.empty_like(like).uniform_(generator=generator)


def _dtype(space: Space[Any]) -> torch.dtype:
    return getattr(torch, str(space.dtype))  # type: ignore[no-any-return]  # torch names its dtypes as numpy does
