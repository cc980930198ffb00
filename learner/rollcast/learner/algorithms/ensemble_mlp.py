"""Computes the MLPs of an ensemble together: one batched product a layer, instead of one a layer and member."""

from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from rollcast.actor.policies.network_arithmetic import hidden_dtype
from rollcast.services.policies.policies import Activation

# torch.nn.LayerNorm's.
LAYER_NORM_EPSILON: Final = 1e-5


def ensemble_mlp(
    x: Tensor,
    members: Sequence[Sequence[Tensor]],
    activation: Activation,
    norms: Sequence[Sequence[Tensor]] | None = None,
) -> Tensor:
    """Computes E MLPs: linear layers, with an activation after each but the last.

    Their weights are put side by side at each call, which costs a fiftieth of the products of a batch of 256. So each
    member keeps parameters of its own, with the names and in the order of a network that is alone.

    The products of hidden layers are in the format of `network_arithmetic`; the rest is float32.

    Args:
        x: float32 `[E, N, n_in]`, the inputs of each member; may be expanded.
        members: For each member weight `[n_out, n_in]` and bias `[n_out]`, layer by layer.
        activation: `"tanh"` or `"relu"`.
        norms: For each member gain and shift `[n_out]` of the layer norm between product and activation, hidden layer
            by hidden layer (Ba et al. 2016, https://arxiv.org/abs/1607.06450, equation 4). None: there is none.

    Returns:
        float32 `[E, N, n_out]`.
    """
    layers = _side_by_side(members)
    of_norms = [] if norms is None else _side_by_side(norms)
    *hidden, (last_weight, last_bias) = layers
    dtype = hidden_dtype()
    for i, (weight, bias) in enumerate(hidden):
        x = torch.baddbmm(bias[:, None].to(dtype), x.to(dtype), weight.transpose(1, 2).to(dtype)).to(torch.float32)
        if of_norms:
            gain, shift = of_norms[i]
            x = torch.addcmul(shift[:, None], F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPSILON), gain[:, None])
        x = torch.tanh(x) if activation == "tanh" else torch.relu(x)
    return torch.baddbmm(last_bias[:, None], x, last_weight.transpose(1, 2))


def _side_by_side(members: Sequence[Sequence[Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Returns the two tensors of each layer, `[E, ...]`."""
    stacked = [torch.stack(same) for same in zip(*members, strict=True)]
    return list(zip(stacked[::2], stacked[1::2], strict=True))
