"""Constants of networks and losses, copied to each device once."""

from functools import lru_cache

import torch
from torch import Tensor


# A bound that no process reaches: each of its few spaces has a few constants on one or two devices.
@lru_cache(maxsize=1024)
def constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Returns integers as a cached tensor on a device, so that no copy waits for the device.

    Args:
        values: The integers.
        device: The device.

    Returns:
        int64 `[n]`; do not change it.
    """
    with torch.inference_mode(False):  # otherwise an acting policy could make a tensor that training cannot use
        return torch.tensor(values, dtype=torch.int64, device=device)
