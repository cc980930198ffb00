"""Places arrays side by side in a copier's memory, so that one copy sends them to the copier's device."""

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from rollcast.learner.devices.copier import Copier, Fence

# Shape and dtype of an array.
ArrayLayout: TypeAlias = tuple[tuple[int, ...], DTypeLike]

# Arrays begin at multiples of this many bytes: a line of the cache, and a multiple of what kernels of GPUs want.
_ALIGNMENT: Final = 64


class Staging:
    """Reusable memory for arrays that are sent to a device together. For one thread.

    Invariant: no running copy reads the arrays between `open` (or `wait`) and `send_together`.

    Args:
        copier: Copies the arrays.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._layout: list[ArrayLayout] = []
        self._parts: list[slice] = []
        self._arrays: list[NDArray[Any]] = []
        # The arrays as tensors, if no copy is necessary; made on first use.
        self._shared: list[Tensor] | None = None
        self._fence: Fence | None = None

    def open(self, layout: Sequence[ArrayLayout]) -> list[NDArray[Any]]:
        """Waits for the last copy, and returns arrays with undefined content to fill.

        Args:
            layout: Shapes and dtypes of the arrays.
        """
        self.wait()
        layout = list(layout)
        if layout != self._layout:
            self._lay_out(layout)
        return self._arrays

    def _lay_out(self, layout: list[ArrayLayout]) -> None:
        self._parts = []
        start = 0
        for shape, dtype in layout:
            self._parts.append(slice(start, start + np.dtype(dtype).itemsize * math.prod(shape)))
            start = -(-self._parts[-1].stop // _ALIGNMENT) * _ALIGNMENT
        if len(self._memory) < start:
            # First the exact size, then powers of two, so that arrays of changing sizes cause few allocations.
            self._memory = self._copier.host_memory(1 << (start - 1).bit_length() if len(self._memory) else start)
        shown = self._memory.numpy()
        self._arrays = [
            shown[part].view(dtype).reshape(shape) for part, (shape, dtype) in zip(self._parts, layout, strict=True)
        ]
        self._layout, self._shared = layout, None

    def wait(self) -> None:
        """Waits for the last copy, so that the arrays may be filled again."""
        if self._fence is not None:
            self._fence.wait()
            self._fence = None

    def begin_copy(self) -> list[Tensor]:
        """Begins the copy of all arrays; see `send_together`, which calls it."""
        assert self._fence is None, "open() or wait() comes first"
        if self._copier.shares_memory:
            if self._shared is None:
                self._shared = [torch.from_numpy(array) for array in self._arrays]
            return self._shared
        n_bytes = self._parts[-1].stop if self._parts else 0
        sent = self._copier.send(self._memory[:n_bytes], to=self._copier.device)
        return [
            sent[part].view(torch_dtype(array.dtype)).view(array.shape)
            for part, array in zip(self._parts, self._arrays, strict=True)
        ]

    def end_copy(self, fence: Fence) -> None:
        """Stores the fence after the copy; see `send_together`, which calls it."""
        self._fence = fence


def send_together(copier: Copier, *stagings: Staging) -> tuple[list[list[Tensor]], Fence]:
    """Begins the copies of all arrays, one copy for each staging.

    Args:
        copier: The copier of all of them.
        stagings: The stagings, each opened or waited for since its last copy.

    Returns:
        For each staging its arrays on the device, and a fence after them. On the CPU, they share the staging's memory
        and are valid until it is opened again.
    """
    sent = [staging.begin_copy() for staging in stagings]
    fence = copier.fence()
    for staging in stagings:
        staging.end_copy(fence)
    return sent, fence


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Returns torch's dtype of a numpy dtype."""
    return torch.from_numpy(np.zeros(0, dtype)).dtype
