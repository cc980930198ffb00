"""Copies a policy's arrays from the device together, so that readers wait, and training does not."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollcast.learner.devices.copier import Copier, Fence
from rollcast.services.policies.policies import PolicyState

# Converts an array, given its name, to its published form.
Published: TypeAlias = Callable[[str, NDArray[np.generic]], NDArray[np.generic]]

# Parameters in one vector that are no more than this apart, in numbers, are copied together.
_GAP = 64


class PolicySnapshot(Mapping[str, NDArray[np.generic]]):
    """The arrays of a module's `state_dict` at one moment, by name: a `PolicyState`. Any thread may read it.

    Construction begins the copies without waiting, and the device does not wait, either. So training may change the
    parameters at once. The first read waits for the copies, and raises if training has diverged.

    Args:
        module: The module. Later training does not change the snapshot.
        copier: Copies from the module's device. Parts in main memory are copied at once.
        published: Converts each array to its published form.
        check: Called with the copy of `watched` before the first read; raises if training has diverged.
        watched: A tensor on the module's device for `check`; None: no check.
    """

    def __init__(
        self,
        module: nn.Module,
        copier: Copier,
        *,
        published: Published = lambda _name, array: array,
        watched: Tensor | None = None,
        check: Callable[[Tensor], None] = lambda _watched: None,
    ) -> None:
        tensors = {name: tensor.detach() for name, tensor in module.state_dict().items()}
        self._names = tuple(tensors)
        self._parts = [(run, _sent(run.source, copier)) for run in _runs(tensors)]
        self._watched = None if watched is None else _sent(watched, copier)
        self._check = check
        self._published = published
        self._lock = threading.Lock()  # guards the two below: several readers may come at once
        self._fence: Fence | None = copier.fence()
        self._arrays: dict[str, NDArray[np.generic]] = {}

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        return self._there()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _there(self) -> dict[str, NDArray[np.generic]]:
        with self._lock:
            if self._fence is not None:
                self._fence.wait()
                if self._watched is not None:
                    self._check(self._watched)
                arrays = {name: array for run, copy in self._parts for name, array in run.arrays(copy)}
                self._arrays = {name: self._published(name, arrays[name]) for name in self._names}
                self._parts.clear()
                self._fence = None
            return self._arrays


class MergedStates(Mapping[str, NDArray[np.generic]]):
    """The arrays of several policies as one mapping. The last policy with a name wins. Arrays are read lazily.

    Args:
        states: The policies' arrays.
        names: The names of all arrays, in order.
    """

    def __init__(self, states: Sequence[PolicyState], names: Iterable[str]) -> None:
        self._states = states
        self._names = tuple(names)

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        for state in reversed(self._states):
            if name in state:
                return state[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class _Run:
    """Tensors that are adjacent in memory.

    Attributes:
        source: The memory from first to last tensor, one-dimensional; a single tensor keeps its shape.
        tensors: Each tensor by name, with its offset in the source.
    """

    source: Tensor
    tensors: tuple[tuple[str, int, Tensor], ...]

    def arrays(self, copy: Tensor) -> Iterable[tuple[str, NDArray[np.generic]]]:
        flat = copy.reshape(-1).numpy()
        for name, start, tensor in self.tensors:
            yield name, flat[start : start + tensor.numel()].reshape(tensor.shape)


def _runs(tensors: Mapping[str, Tensor]) -> list[_Run]:
    """Finds the tensors that can be copied together because they are slices of one vector."""
    runs: list[_Run] = []
    members: list[tuple[str, int, Tensor]] = []
    first, end = 0, 0

    def close() -> None:
        if members:
            source = members[0][2]
            if len(members) > 1:
                source = source.as_strided((end - first,), (1,), first)
            runs.append(_Run(source, tuple((name, start - first, tensor) for name, start, tensor in members)))
            members.clear()

    for name, tensor in sorted(tensors.items(), key=lambda item: (_storage(item[1]), item[1].storage_offset())):
        start = int(tensor.storage_offset())
        last = members[-1][2] if members else None
        follows = (
            last is not None
            and _storage(tensor) == _storage(last)
            and tensor.is_contiguous()
            and last.is_contiguous()
            and end <= start <= end + _GAP
        )
        if not follows:
            close()
            first = start
        members.append((name, start, tensor))
        end = start + tensor.numel()
    close()
    return runs


def _storage(tensor: Tensor) -> tuple[int, str]:
    """Returns a key that tensors in the same memory with the same dtype share."""
    # Not data_ptr, which tensors without memory of their own do not have.
    return tensor.untyped_storage()._cdata, str(tensor.dtype)


def _sent(source: Tensor, copier: Copier) -> Tensor:
    """Begins to copy a tensor from the copier's device to main memory; copies at once from other devices."""
    if not source.numel():
        return torch.empty(source.shape, dtype=source.dtype)
    if source.device.type == "cpu" and copier.device.type != "cpu":
        return source.clone()
    # A copy within the device takes microseconds. The next update would wait for one to main memory.
    order = torch.contiguous_format
    source = source.contiguous() if copier.shares_memory else source.clone(memory_format=order)
    target = copier.host_memory(source.numel() * source.element_size()).view(source.dtype).view(source.shape)
    return copier.send(source, to=target)
