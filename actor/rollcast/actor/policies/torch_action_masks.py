"""Applies action masks in torch, for losses; `action_masks` is the version in numpy."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from rollcast.actor.policies.action_masks import ACTION_MASK, FORBIDDEN, ActionMask


def allowed_actions(mask: ActionMask, observation: Mapping[str, Tensor]) -> Tensor:
    """Returns the allowed actions; see `ActionMask.allowed`.

    Args:
        mask: The layout of the mask.
        observation: `[..., n]` for the mask; other leaves are ignored.

    Returns:
        bool `[..., n]`, at least one True for each element of the action space.
    """
    parts = torch.split(observation[ACTION_MASK] != 0, list(mask.sizes), dim=-1)
    return torch.cat([part | ~part.any(dim=-1, keepdim=True) for part in parts], dim=-1)


def forbid(outputs: Tensor, allowed: Tensor | None) -> Tensor:
    """Replaces the outputs of forbidden actions with `FORBIDDEN`, which has no gradient.

    Args:
        outputs: float32 `[..., P]`; the last n are logits or values of the actions, or advantages.
        allowed: bool `[..., n]`; None: all actions are allowed.

    Returns:
        float32 `[..., P]`.
    """
    if allowed is None:
        return outputs
    return outputs.masked_fill(F.pad(~allowed, (outputs.shape[-1] - allowed.shape[-1], 0)), FORBIDDEN)
