"""The arithmetic of networks during updates: number format, and memory layout of images.

Parameters and the outputs of every network stay float32. The last layer computes in float32, because bfloat16 near 300
has a resolution of 2. Losses, targets, gradients of parameters and optimisers always use float32.
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkArithmetic:
    """The arithmetic of networks on one thread.

    Attributes:
        hidden: The format of convolutions and hidden layers: torch.float32 or torch.bfloat16. Custom networks use this
            format through torch.autocast. Recurrent layers (LSTM, GRU) are always float32.
        channels_last: The memory layout of images. True: channels last; False: the environment's layout; None: channels
            last where gradients are computed. The results differ by rounding.
    """

    hidden: torch.dtype = torch.float32
    channels_last: bool | None = None


# The arithmetic of actors, and of learners on the CPU.
DEFAULT_ARITHMETIC: Final = NetworkArithmetic()
_current: ContextVar[NetworkArithmetic] = ContextVar("network_arithmetic", default=DEFAULT_ARITHMETIC)


@contextlib.contextmanager
def networks_compute(arithmetic: NetworkArithmetic) -> Iterator[None]:
    """Sets the arithmetic of all networks that this thread runs inside the block; other threads are not affected."""
    token = _current.set(arithmetic)
    try:
        yield
    finally:
        _current.reset(token)


def hidden_dtype() -> torch.dtype:
    """Returns the current format of hidden layers."""
    return _current.get().hidden


def hidden_layers(device: torch.device) -> AbstractContextManager[Any]:
    """Returns the context for the modules of hidden layers. Convert the outputs of these modules to float32.

    Args:
        device: The device of the layers.
    """
    dtype = hidden_dtype()
    if dtype == torch.float32:
        return contextlib.nullcontext()
    # Without the cache of cast parameters: it would outlive the block in a graph that is captured.
    return torch.autocast(device.type, dtype=dtype, cache_enabled=False)


def scaled_pixels(image: Tensor) -> Tensor:
    """Returns images of bytes as numbers from 0 to 1, in the format of hidden layers.

    Args:
        image: uint8 `[N, C, H, W]`; may be a view in any order.

    Returns:
        `[N, C, H, W]`, in the memory layout of `NetworkArithmetic.channels_last`.
    """
    arithmetic = _current.get()
    # With the channels last, gradients of convolutions take a quarter less time, on one core. Without gradients, the
    # new order costs more than it gives.
    channels_last = torch.is_grad_enabled() if arithmetic.channels_last is None else arithmetic.channels_last
    order = torch.channels_last if channels_last else torch.preserve_format
    if image.device.type == "cpu":
        # On the CPU, a product whose result has another format copies both factors. This takes half the time.
        return image.to(torch.float32, memory_format=order).mul_(1.0 / 255.0).to(arithmetic.hidden)
    pixels = torch.empty_like(image, dtype=arithmetic.hidden, memory_format=order)
    return torch.mul(image, 1.0 / 255.0, out=pixels)


def follow_arithmetic(network: nn.Module) -> nn.Module:
    """Makes a custom network compute in the thread's arithmetic. Returns the same network."""
    network.register_forward_pre_hook(_enter)
    network.register_forward_hook(_leave, always_call=True)
    return network


# The blocks of the custom networks' forward passes that this thread is in.
_entered: ContextVar[tuple[AbstractContextManager[Any], ...]] = ContextVar("entered", default=())


def _enter(network: nn.Module, _inputs: Any) -> None:  # noqa: ANN401 - torch's
    parameter = next(network.parameters(), None)
    block = hidden_layers(torch.device("cpu") if parameter is None else parameter.device)
    block.__enter__()
    _entered.set((*_entered.get(), block))


def _leave(_network: nn.Module, _inputs: Any, output: Any) -> Any:  # noqa: ANN401 - torch's
    *others, block = _entered.get()
    _entered.set(tuple(others))
    block.__exit__(None, None, None)
    return output.to(torch.float32) if isinstance(output, Tensor) and output.dtype != torch.float32 else output
