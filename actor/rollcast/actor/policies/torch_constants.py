"""Constants that networks and losses compute with, copied to each device once."""

from functools import lru_cache

import torch
from torch import Tensor


# Bounded, although a process knows few spaces: each of them has a few constants on one or two devices.
@lru_cache(maxsize=1024)
def constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Returns integers as a tensor on a device, the same one each time, so that no copy waits for the device.

    Args:
        values: The integers.
        device: The device.

    Returns:
        int64 `[n]`; do not change it.
    """
    with torch.inference_mode(False):  # else a policy that acts could make it unfit for training
        return torch.tensor(values, dtype=torch.int64, device=device)
