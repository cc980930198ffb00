"""The only interface for copies between main memory and a device: send, fence, wait.

`Copier.send` begins a copy, and `Copier.fence` marks earlier copies. `Fence.before_use` makes a device wait for these
copies before it uses their targets. `Fence.wait` makes the host wait before it writes sources or reads targets.
"""

from typing import Protocol

import torch
from torch import Tensor

from rollcast.learner.devices.choice import with_index
from rollcast.learner.devices.streams import streams_of
from rollcast.services.errors import InvalidInputError


class Fence(Protocol):
    """A mark after copies. Any thread may wait for it."""

    def wait(self) -> None:
        """Blocks until the copies are complete. Then the host may write sources and read targets.

        Returns at once if they are complete. May be called again.
        """

    def before_use(self) -> None:
        """Makes the current stream of the copies' device wait for the copies; the calling thread continues.

        Call it once for each fence, before a device uses the targets, in the thread that uses them. Later work on that
        stream may also write the copies' sources, if these are on the device.
        """


class Copier(Protocol):
    """Copies tensors between main memory and one device. One thread at a time may use it, and any thread its fences.

    Rule: this holds from `send` to the end of the wait for a later fence. No thread writes or frees the source, and the
    host does not read the target. On the CPU, unnecessary copies are omitted. The result of `send` may then share the
    memory of the source, and is valid until the source is written.

    Attributes:
        device: The device, with its index.
        shares_memory: True if the device works in main memory, like the CPU, so that no copies are necessary.
    """

    device: torch.device
    shares_memory: bool

    def host_memory(self, n_bytes: int) -> Tensor:
        """Allocates main memory for copies to and from the device: uint8 `[n_bytes]`, pinned if necessary.

        The content of the memory is undefined.
        """

    def send(self, source: Tensor, *, to: torch.device | Tensor) -> Tensor:
        """Begins a copy.

        Source and target on the device are used after earlier work on the caller's current stream.

        Args:
            source: In memory of `host_memory`, or on the device; contiguous.
            to: The device, for a new tensor; or a tensor of the source's dtype and shape, on the device or in memory of
                `host_memory`.

        Returns:
            The target.

        Raises:
            InvalidInputError: Source or target is in memory that this copier does not support.
        """

    def fence(self) -> Fence:
        """Marks the copies since the last fence, on their device streams."""


def make_copier(device: torch.device | str) -> Copier:
    """Returns a copier for a device. `cuda` without an index means the current device of the calling thread."""
    device = torch.device(device)
    return CudaCopier(device) if device.type == "cuda" else ImmediateCopier(device)


class ImmediateCopier:
    """A `Copier` whose copies are complete when `send` returns: for the CPU, where most copies are unnecessary.

    Args:
        device: Any device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.shares_memory = device.type == "cpu"

    def host_memory(self, n_bytes: int) -> Tensor:
        """See `Copier.host_memory`."""
        return torch.empty(n_bytes, dtype=torch.uint8)

    def send(self, source: Tensor, *, to: torch.device | Tensor) -> Tensor:
        """See `Copier.send`; returns the source itself if it is on the target device."""
        return to.copy_(source) if isinstance(to, Tensor) else source.to(to)

    def fence(self) -> Fence:
        """See `Copier.fence`."""
        return _PASSED


class _Passed:
    """A fence after complete copies."""

    def wait(self) -> None:
        """See `Fence.wait`."""

    def before_use(self) -> None:
        """See `Fence.before_use`."""


_PASSED = _Passed()


class CudaCopier:
    """A `Copier` for a GPU. Copies run concurrently with other streams, on the two copy streams of `streams_of`.

    Copies from main memory into new tensors wait for no other work. These copies have a separate stream, because the
    other copies wait for the caller's stream. The copier refuses memory that is not pinned: a copy from such memory
    would wait for the device, or read freed memory.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = with_index(device)
        self.shares_memory = False
        self._streams = streams_of(self.device)
        # Those with copies since the last fence.
        self._busy: set[torch.cuda.Stream] = set()
        # Targets that were allocated on a stream for copies since the last fence.
        self._new_targets: list[Tensor] = []

    def host_memory(self, n_bytes: int) -> Tensor:
        """See `Copier.host_memory`."""
        # The calling thread may have another current device, on which a context would be made for nothing.
        with torch.cuda.device(self.device):
            return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)

    def send(self, source: Tensor, *, to: torch.device | Tensor) -> Tensor:
        """See `Copier.send`."""
        for tensor in (source, to):
            if isinstance(tensor, Tensor):
                self._check(tensor)
        stream = self._streams.free_copies
        if source.is_cuda or isinstance(to, Tensor):
            # Work of the caller's stream has yet to make the source, or still uses the target.
            stream = self._streams.ordered_copies
            stream.wait_stream(torch.cuda.current_stream(self.device))
        self._busy.add(stream)
        # This also makes the stream's device the current one.
        with torch.cuda.stream(stream):
            if isinstance(to, Tensor):
                target = to.copy_(source, non_blocking=True)
            elif to.type == "cpu":
                target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True).copy_(source, non_blocking=True)
            else:
                target = source.to(self.device, non_blocking=True, copy=True)
                self._new_targets.append(target)
        for tensor in (source, to):
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                tensor.record_stream(stream)
        return target

    def fence(self) -> Fence:
        """See `Copier.fence`."""
        events = []
        for stream in self._busy:
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # of torch
            event.record(stream)
            events.append(event)
        self._busy.clear()
        targets, self._new_targets = self._new_targets, []
        return _CudaFence(events, self.device, targets)

    def _check(self, tensor: Tensor) -> None:
        if tensor.is_cuda:
            if tensor.device != self.device:
                raise InvalidInputError(
                    f"a copier for {self.device} was given a tensor on {tensor.device}; expected one on its device or "
                    "in pinned memory; make a copier for each device"
                )
        elif tensor.numel() and not tensor.is_pinned():
            n_bytes = tensor.numel() * tensor.element_size()
            raise InvalidInputError(
                f"a copier for {self.device} was given {n_bytes:,} bytes of {tensor.device} memory that is not pinned; "
                "expected memory of its host_memory"
            )


class _CudaFence:
    """Events on the streams for copies."""

    def __init__(self, events: list[torch.cuda.Event], device: torch.device, targets: list[Tensor]) -> None:
        self._events = events
        self._device = device
        self._targets = targets

    def wait(self) -> None:
        """See `Fence.wait`."""
        for event in self._events:
            event.synchronize()

    def before_use(self) -> None:
        """See `Fence.before_use`."""
        current = torch.cuda.current_stream(self._device)
        for event in self._events:
            event.wait(current)
        # They belong to a stream for copies: without this, others would get their memory while this stream uses it.
        targets, self._targets = self._targets, []
        for target in targets:
            target.record_stream(current)
