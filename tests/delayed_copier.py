"""A copier that copies as late as it may, and finds what is read, written or freed too early. For CPU tensors."""

import threading
import weakref
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollcast.learner.devices.copier import Fence

# Every byte of a target has this value until its copy is made: NaN in floats, -1 in signed integers.
POISON = 0xFF


class DelayedCopier:
    """A `Copier` whose "device" is main memory apart from that of `host_memory`. Any thread may use it.

    A copy is made when its fence is waited for, by the host or by a stream, and not before. Until then its target is
    poisoned. It reads whatever its source holds then: a source that was refilled too early shows in the target, one
    that was freed leaves the poison.

    Raises:
        AssertionError: A source is pageable, is sent in two copies at once, or was written after a stream waited for
            its copy, but before the host did: the device may still have been reading it.

    Attributes:
        n_sent: The copies that were sent.
        n_waits: The waits of the host for a fence that it had not waited for yet.
        n_stream_waits: The waits of a stream.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.shares_memory = False
        self.n_sent = self.n_waits = self.n_stream_waits = 0
        self._lock = threading.RLock()  # guards everything
        self._host: list[weakref.ref[NDArray[np.uint8]]] = []
        self._unfenced: list[Copy] = []
        self._in_flight: list[Copy] = []

    def host_memory(self, n_bytes: int) -> Tensor:
        """See `Copier.host_memory`; the memory is gone once the tensor and its views are."""
        memory = np.full(n_bytes, POISON, np.uint8)
        with self._lock:
            self._host.append(weakref.ref(memory))
        return torch.from_numpy(memory)

    def send(self, source: Tensor, *, to: torch.device | Tensor) -> Tensor:
        """See `Copier.send`; returns poison."""
        assert source.is_contiguous()
        with self._lock:
            self.check()
            target = to if isinstance(to, Tensor) else torch.empty_like(source)
            _bytes(target).fill(POISON)
            to_host = self._memory_of(target) is not None
            start = source.data_ptr()
            memory = None if to_host else self._memory_of(source)
            assert to_host or memory is not None or not source.numel(), "a copy from pageable memory"
            if memory is not None:
                start -= memory.ctypes.data
                end = start + source.numel() * source.element_size()
                for other in self._in_flight:
                    is_there = other.memory is not None and other.memory() is memory
                    overlaps = is_there and start < other.end and other.start < end
                    assert not overlaps, "sent again before the fence of its copy was waited for"
            self.n_sent += 1
            copy = Copy(
                target=target,
                device_source=source if memory is None else None,
                memory=None if memory is None else weakref.ref(memory),
                start=start,
                end=start + source.numel() * source.element_size(),
            )
            self._unfenced.append(copy)
            self._in_flight.append(copy)
            return target

    def fence(self) -> Fence:
        """See `Copier.fence`."""
        with self._lock:
            copies, self._unfenced = self._unfenced, []
            return _DelayedFence(self, copies)

    def check(self) -> None:
        """Looks for sources that were written too early; called by every `send` and wait."""
        with self._lock:
            for copy in self._in_flight:
                copy.check()

    def pass_stream(self, copies: "list[Copy]") -> None:
        """Makes the copies that a stream waits for; those to the host can be read after the host's wait only."""
        with self._lock:
            self.check()
            self.n_stream_waits += 1
            for copy in copies:
                copy.read()

    def pass_host(self, copies: "list[Copy]") -> None:
        """Makes the copies that the host waits for, and ends them."""
        with self._lock:
            self.check()
            waiting = [copy for copy in copies if copy in self._in_flight]
            self.n_waits += bool(waiting)
            for copy in waiting:
                copy.read()
                copy.end_at_host()
                self._in_flight.remove(copy)

    def _memory_of(self, tensor: Tensor) -> NDArray[np.uint8] | None:
        """Returns the memory of `host_memory` in which a tensor lies."""
        for reference in self._host:
            memory = reference()
            if memory is not None and 0 <= tensor.data_ptr() - memory.ctypes.data < max(len(memory), 1):
                return memory
        return None


@dataclass(eq=False)
class Copy:
    """A copy under way: from memory of the host, which is not kept alive, or from the device."""

    target: Tensor
    device_source: Tensor | None
    memory: weakref.ref[NDArray[np.uint8]] | None
    start: int
    end: int
    was_read: NDArray[np.uint8] | None = None

    @property
    def is_to_host(self) -> bool:
        """True if the host is to read the target."""
        return self.device_source is not None

    def source(self) -> NDArray[np.uint8] | None:
        """Returns the bytes of the source now; None if it is gone."""
        if self.device_source is not None:
            return _bytes(self.device_source)
        assert self.memory is not None
        memory = self.memory()
        return None if memory is None else memory[self.start : self.end]

    def read(self) -> None:
        """Copies to the device, once; for a copy to the host, reads the source, once."""
        source = self.source()
        if self.was_read is not None or source is None:
            return
        self.was_read = source.copy()
        if self.device_source is None:
            _bytes(self.target)[:] = self.was_read

    def end_at_host(self) -> None:
        """Shows the host what was read from the device."""
        if self.device_source is not None and self.was_read is not None:
            _bytes(self.target)[:] = self.was_read

    def check(self) -> None:
        """Checks that a source in main memory is as it was when it was read."""
        source = self.source()
        if self.device_source is None and self.was_read is not None and source is not None:
            assert np.array_equal(source, self.was_read), "written before the fence of its copy was waited for"


@dataclass(eq=False)
class _DelayedFence:
    copier: DelayedCopier
    copies: list[Copy]

    def wait(self) -> None:
        """See `Fence.wait`."""
        self.copier.pass_host(self.copies)

    def before_use(self) -> None:
        """See `Fence.before_use`."""
        self.copier.pass_stream(self.copies)


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """Returns the bytes of a contiguous tensor, as a view."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()
