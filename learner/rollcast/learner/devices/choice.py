"""Chooses the device of a learner by the device's name."""

import torch

from rollcast.services.errors import ConfigurationError


def choose_device(name: str) -> torch.device:
    """Returns the device for a name: `auto`, `cpu` or `cuda`.

    Raises:
        ConfigurationError: The name is `cuda`, and torch finds no CUDA device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("--device: 'cuda', but torch finds no CUDA device here; use --device cpu, or auto")
    return torch.device(name)


def with_index(device: torch.device) -> torch.device:
    """Returns a CUDA device with its index; a device without an index is the current device of the calling thread."""
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
