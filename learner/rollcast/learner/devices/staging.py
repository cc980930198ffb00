"""Lays arrays out side by side in memory of a copier, so that they travel to its device in one copy."""

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
    """Memory for arrays that travel to a device together; it is used again and again. For one thread.

    Invariant: no copy that is under way reads the arrays between `open`, or `wait`, and `send_together`.

    Args:
        copier: Copies them.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._parts: list[tuple[slice, tuple[int, ...], torch.dtype]] = []
        self._n_bytes = 0
        self._fence: Fence | None = None

    def open(self, layout: Sequence[ArrayLayout]) -> list[NDArray[Any]]:
        """Waits until the last copy is made, and returns arrays to be filled, with undefined content.

        Args:
            layout: Shapes and dtypes of the arrays.
        """
        self.wait()
        self._parts = []
        arrays: list[tuple[slice, tuple[int, ...], np.dtype[Any]]] = []
        start = 0
        for shape, dtype_like in layout:
            dtype = np.dtype(dtype_like)
            part = slice(start, start + dtype.itemsize * int(np.prod(shape, dtype=np.int64)))
            arrays.append((part, shape, dtype))
            self._parts.append((part, shape, torch_dtype(dtype)))
            start = -(-part.stop // _ALIGNMENT) * _ALIGNMENT
        self._n_bytes = start
        if len(self._memory) < start:
            # First what is needed; then powers of two, so that arrays of changing sizes cause few allocations.
            self._memory = self._copier.host_memory(1 << (start - 1).bit_length() if len(self._memory) else start)
        shown = self._memory.numpy()
        return [shown[part].view(dtype).reshape(shape) for part, shape, dtype in arrays]

    def wait(self) -> None:
        """Waits until the last copy is made: the arrays may be filled again."""
        if self._fence is not None:
            self._fence.wait()
            self._fence = None

    def begin_copy(self) -> list[Tensor]:
        """Begins the copy of all arrays; see `send_together`, which calls it."""
        assert self._fence is None, "open() or wait() comes first"
        sent = self._copier.send(self._memory[: self._n_bytes], to=self._copier.device)
        return [sent[part].view(dtype).view(shape) for part, shape, dtype in self._parts]

    def end_copy(self, fence: Fence) -> None:
        """Keeps the fence after its copy; see `send_together`, which calls it."""
        self._fence = fence


def send_together(copier: Copier, *stagings: Staging) -> tuple[list[list[Tensor]], Fence]:
    """Begins the copies of all arrays, one for each staging.

    Args:
        copier: The copier of all of them.
        stagings: Each opened, or waited for, since it was sent.

    Returns:
        For each staging its arrays on the device, and a fence after them. On the CPU they share the staging's memory:
        they are valid until it is opened again.
    """
    sent = [staging.begin_copy() for staging in stagings]
    fence = copier.fence()
    for staging in stagings:
        staging.end_copy(fence)
    return sent, fence


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Returns torch's dtype of a numpy dtype."""
    return torch.from_numpy(np.zeros(0, dtype)).dtype
