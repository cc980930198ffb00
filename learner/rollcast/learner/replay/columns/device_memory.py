"""Keeps columns on the learner's device as tensors: written from pinned memory, indexed on the device."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollcast.learner.devices.copier import Copier
from rollcast.learner.devices.staging import Staging, send_together, torch_dtype
from rollcast.learner.replay.columns.memory import (
    Blocks,
    ColumnArray,
    Gather,
    Pairs,
    PendingArrays,
    Rows,
    Span,
    Write,
)

# torch cannot index these unsigned integers: their bytes are treated as signed integers.
_SIGNED: Final = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}

# Rollouts that may be on their way to the device at once; the next insertion waits for the oldest copy.
_N_STAGINGS: Final = 3


class DeviceMemory:
    """A `ColumnMemory` of tensors on a torch device.

    It waits for the device only if the staging's last copy still runs. All work goes to one stream: the stream that was
    current at construction. So a gather sees every earlier write. If the caller's current stream is another stream, the
    work waits for that stream's earlier work, and that stream waits for the work.

    Args:
        copier: Copies to and from the learner's device, for this memory only. The device may be the CPU.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._device = copier.device
        self._stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        self._stagings = [Staging(copier) for _ in range(_N_STAGINGS)]
        self._next_staging = 0

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """See `ColumnMemory.zeros`."""
        if self._device.type == "cpu":
            return torch.from_numpy(np.zeros(shape, dtype))
        with self._ordered():
            return torch.zeros(shape, dtype=torch_dtype(dtype), device=self._device)

    def write(self, writes: Sequence[Write]) -> None:
        """See `ColumnMemory.write`. All values go to the device in one copy."""
        arrays: list[NDArray[Any]] = []
        for columns, rows, values in writes:
            index, kept = _indices(rows, values[0].shape[:2])
            arrays.append(index)
            for column, source in zip(columns, values, strict=True):
                flat = source.reshape(-1, *column.shape[1:])
                arrays.append(flat if kept is None else flat[kept])
        with self._ordered():
            sent = iter(self._send(arrays))
            for columns, _, _ in writes:
                index_sent = next(sent)
                for column in columns:
                    _indexable(column).index_copy_(0, index_sent, _indexable(next(sent)))

    def read(self, columns: Sequence[ColumnArray], rows: NDArray[np.int64]) -> PendingArrays:
        """See `ColumnMemory.read`. The call does not wait for the device; calling the result does."""
        with self._ordered():
            (index,) = self._send([rows])
            return self.fetch(
                [_indexable(column).index_select(0, index).view(_tensor(column).dtype) for column in columns]
            )

    def fetch(self, arrays: Sequence[ColumnArray]) -> PendingArrays:
        """See `ColumnMemory.fetch`. The call does not wait for the device; calling the result does."""
        fetched = []
        with self._ordered():
            for array in arrays:
                tensor = _tensor(array).contiguous()
                host = self._copier.host_memory(tensor.numel() * tensor.element_size())
                fetched.append(self._copier.send(tensor, to=host.view(tensor.dtype).view(tensor.shape)))
            fence = self._copier.fence()

        def wait() -> list[NDArray[Any]]:
            fence.wait()
            return [tensor.numpy() for tensor in fetched]

        return wait

    def gather(self, next_pairs: Pairs, step_pairs: Pairs) -> Gather:
        """See `ColumnMemory.gather`."""
        n_rows = len(next_pairs[0][0]) if next_pairs else 1
        staging = Staging(self._copier)
        next_tensors, step_tensors = _indexable_pairs(next_pairs), _indexable_pairs(step_pairs)

        def gather(following: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
            next_staged, step_staged = staging.open([(following.shape, np.int64), (rows.shape, np.int64)])
            np.remainder(following, n_rows, out=next_staged)
            step_staged[...] = rows
            with self._ordered():
                next_rows, step_rows = self._begin_copy(staging)
                for column, target in next_tensors:
                    torch.index_select(column, 0, next_rows, out=target)
                for column, target in step_tensors:
                    torch.index_select(column, 0, step_rows, out=target)

        return gather

    def keep(self, arrays: Sequence[NDArray[Any]], sizes: Sequence[int]) -> list[list[ColumnArray]]:
        """See `ColumnMemory.keep`. Each chunk has its own memory, so that it can be freed alone."""
        with self._ordered():
            cut = [torch.split(tensor, list(sizes)) for tensor in self._send(arrays)]
            return [[piece.clone() for piece in pieces] for pieces in zip(*cut, strict=True)]

    def join(self, pieces: Sequence[ColumnArray]) -> Tensor:
        """See `ColumnMemory.join`."""
        with self._ordered():
            joined = torch.cat([_indexable(piece) for piece in pieces]).view(_tensor(pieces[0]).dtype)
        if self._stream is not None:
            joined.record_stream(torch.cuda.current_stream(self._device))
        return joined

    def _send(self, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
        """Copies arrays to the device in one copy. On the CPU they stay valid until the staging is used again."""
        staging = self._stagings[self._next_staging]
        self._next_staging = (self._next_staging + 1) % _N_STAGINGS
        for staged, array in zip(staging.open([(array.shape, array.dtype) for array in arrays]), arrays, strict=True):
            staged[...] = array
        return self._begin_copy(staging)

    def _begin_copy(self, staging: Staging) -> list[Tensor]:
        """Begins the copy of a staging. Later work on the current stream waits for it."""
        (sent,), fence = send_together(self._copier, staging)
        fence.before_use()
        return sent

    @contextlib.contextmanager
    def _ordered(self) -> Iterator[None]:
        """Runs work on the memory's stream, after the caller's earlier work and before its later work."""
        if self._stream is None:
            yield
            return
        caller = torch.cuda.current_stream(self._device)
        if caller == self._stream:
            yield
            return
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            yield
        caller.wait_stream(self._stream)


def _indices(rows: Rows, step_shape: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Returns the row of each value, int64 `[N]`, and bool, True for values with a row; None: all have one."""
    if isinstance(rows, Blocks):
        return rows.rows(step_shape[0]).reshape(-1), None
    if not isinstance(rows, Span):
        return rows, None
    index = rows.rows(math.prod(step_shape))
    kept = index >= 0
    return (index, None) if kept.all() else (index[kept], kept)


def _tensor(array: ColumnArray) -> Tensor:
    assert isinstance(array, Tensor)
    return array


def _indexable(array: ColumnArray) -> Tensor:
    """Returns a view in a dtype that torch can index."""
    tensor = _tensor(array)
    return tensor.view(_SIGNED.get(tensor.dtype, tensor.dtype))


def _indexable_pairs(pairs: Pairs) -> list[tuple[Tensor, Tensor]]:
    return [(_indexable(column), _indexable(target)) for column, target in pairs]
