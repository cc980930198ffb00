"""Keeps columns on the learner's device as tensors: written from pinned memory, gathered by index on the device."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollcast.learner.replay.columns.memory import Blocks, ColumnArray, Gather, Pairs, Rows, Span, Write

# torch cannot index these unsigned integers: their bytes are treated as signed integers.
_SIGNED: Final = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}

# Rollouts that may be on their way to the device at once; the next insertion waits for the oldest copy.
_N_STAGINGS: Final = 3

# Columns begin in a staging at multiples of this many bytes, itself a multiple of every dtype's size.
_ALIGNMENT: Final = 16


class DeviceMemory:
    """A `ColumnMemory` of tensors on a torch device.

    It waits for the device only where a staging's last copy still runs, and in `read`. All work goes to one stream, the
    one that was current when this was made, so a gather sees every write before it. If the caller's current stream is
    another one, the work waits for what that stream was asked for so far, and that stream waits for the work.

    Args:
        device: The learner's device; the CPU works as well.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._stagings = [Staging(device) for _ in range(_N_STAGINGS)]
        self._next_staging = 0

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """See `ColumnMemory.zeros`."""
        if self._device.type == "cpu":
            return torch.from_numpy(np.zeros(shape, dtype))
        with self._ordered():
            return torch.zeros(shape, dtype=_torch_dtype(dtype), device=self._device)

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

    def read(self, columns: Sequence[ColumnArray], rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        """See `ColumnMemory.read`. Waits for the device."""
        with self._ordered():
            index = torch.from_numpy(rows).to(self._device)
            tensors = [
                _indexable(column).index_select(0, index).view(_tensor(column).dtype).cpu() for column in columns
            ]
        return [tensor.numpy() for tensor in tensors]

    def gather(self, next_pairs: Pairs, step_pairs: Pairs) -> Gather:
        """See `ColumnMemory.gather`."""
        n_rows = len(next_pairs[0][0]) if next_pairs else 1
        staging = Staging(self._device)
        next_tensors, step_tensors = _indexable_pairs(next_pairs), _indexable_pairs(step_pairs)

        def gather(following: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
            n_next = len(following)
            indices = staging.open(8 * (n_next + len(rows))).view(np.int64)
            np.remainder(following, n_rows, out=indices[:n_next])
            indices[n_next:] = rows
            with self._ordered():
                sent = staging.send().view(torch.int64)
                for column, target in next_tensors:
                    torch.index_select(column, 0, sent[:n_next], out=target)
                for column, target in step_tensors:
                    torch.index_select(column, 0, sent[n_next:], out=target)

        return gather

    def keep(self, arrays: Sequence[NDArray[Any]], sizes: Sequence[int]) -> list[list[ColumnArray]]:
        """See `ColumnMemory.keep`. Each piece has its own memory, so that it can be freed alone."""
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
        """Copies arrays to the device in one copy; on the CPU they stay valid until the staging is used again."""
        starts = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)]).tolist()
        staging = self._stagings[self._next_staging]
        self._next_staging = (self._next_staging + 1) % _N_STAGINGS
        staged = staging.open(starts[-1])
        for array, start in zip(arrays, starts, strict=False):
            staged[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
        sent = staging.send()
        return [
            sent[start : start + array.nbytes].view(_torch_dtype(array.dtype)).view(array.shape)
            for array, start in zip(arrays, starts, strict=False)
        ]

    @contextlib.contextmanager
    def _ordered(self) -> Iterator[None]:
        """Puts work on the one stream, after the work on the caller's stream so far and before its later work."""
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


class Staging:
    """Memory that copies to a device start from, pinned if that is a GPU. One thread at a time.

    Invariant: no running copy reads the memory that `open` returns.

    Args:
        device: The device to copy to.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensor = torch.empty(0, dtype=torch.uint8)
        self._n_bytes = 0
        self._copied: torch.cuda.Event | None = None

    def open(self, n_bytes: int) -> NDArray[np.uint8]:
        """Waits until the last copy is done, and returns `n_bytes` to be filled."""
        if self._copied is not None:
            self._copied.synchronize()
        if len(self._tensor) < n_bytes:
            size = 1 << (n_bytes - 1).bit_length()
            self._tensor = torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        self._n_bytes = n_bytes
        shown: NDArray[np.uint8] = self._tensor.numpy()[:n_bytes]
        return shown

    def send(self) -> Tensor:
        """Starts the copy of the opened bytes on the current stream; on the CPU the bytes are shared, not copied."""
        sent = self._tensor[: self._n_bytes].to(self._device, non_blocking=True)
        if self._device.type == "cuda":
            self._copied = self._copied or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(self._device))
        return sent


def _indices(rows: Rows, step_shape: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Returns the row of each value, int64 `[N]`, and bool, which values have a row; None: all have one."""
    if isinstance(rows, Blocks):
        return rows.rows(step_shape[0]).reshape(-1), None
    if not isinstance(rows, Span):
        return rows, None
    index = rows.rows(math.prod(step_shape))
    kept = index >= 0
    return (index, None) if kept.all() else (index[kept], kept)


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype)).dtype


def _tensor(array: ColumnArray) -> Tensor:
    assert isinstance(array, Tensor)
    return array


def _indexable(array: ColumnArray) -> Tensor:
    """Returns a view in a dtype that torch can index."""
    tensor = _tensor(array)
    return tensor.view(_SIGNED.get(tensor.dtype, tensor.dtype))


def _indexable_pairs(pairs: Pairs) -> list[tuple[Tensor, Tensor]]:
    return [(_indexable(column), _indexable(target)) for column, target in pairs]
