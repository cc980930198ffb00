"""torch's optimisers without the import of torch.compile, which takes two seconds of processor time.

Some of an optimiser's methods are wrapped, so that torch.compile leaves them alone, and the first call of a wrapper
imports torch._dynamo. Nothing here is compiled with an optimiser in it: these classes call the methods themselves.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def _unwrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method in a wrapper; the method itself if a torch of another version does not wrap it."""
    return getattr(method, "__wrapped__", method)  # set by functools.wraps


class _Eager(Optimizer):
    add_param_group = _unwrapped(Optimizer.add_param_group)
    load_state_dict = _unwrapped(Optimizer.load_state_dict)
    state_dict = _unwrapped(Optimizer.state_dict)
    zero_grad = _unwrapped(Optimizer.zero_grad)


class Adam(_Eager, torch.optim.Adam):
    """Adam (Kingma and Ba 2015), to the bits of torch.optim.Adam."""

    step = torch.no_grad()(_unwrapped(torch.optim.Adam.step))


class RMSprop(_Eager, torch.optim.RMSprop):
    """RMSProp (Hinton 2012), to the bits of torch.optim.RMSprop."""

    step = torch.no_grad()(_unwrapped(torch.optim.RMSprop.step))


def adam(
    learning_rate: float, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> Callable[[nn.Parameter], Adam]:
    """Returns what makes Adam for one vector: with one kernel instead of ten, on the CPU and on CUDA."""
    return lambda vector: Adam([vector], lr=learning_rate, betas=(beta1, beta2), eps=epsilon, fused=True)


def set_learning_rate(optimizer: Optimizer, learning_rate: Tensor | float) -> None:
    """Sets the learning rate of the next step: a float, or a 0-dim tensor that the step reads on its device."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def make_capturable(optimizer: Optimizer) -> None:
    """Has an optimiser keep all that a step reads on its device, so that steps can be captured in a graph."""
    for group in optimizer.param_groups:
        group["capturable"] = True
        if not group.get("fused"):
            group["foreach"] = True  # the other way reads a learning rate on the device
    for parameter, state in optimizer.state.items():
        if "step" in state:  # RMSprop's is on the CPU until then
            state["step"] = state["step"].to(parameter.device)
    # torch warns of steps that are not captured, as those before the first capture are.
    vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True
