"""Writes and reads files of named arrays, chunk by chunk, and computes their digest during the write.

A chunk is the length of its header (uint32, little-endian), the header (JSON: name to dtype and shape), and the bytes
of the arrays in the header's order, little-endian and C-contiguous. Large arrays are written from their memory and read
into new arrays without an intermediate copy. Writing and digesting release the interpreter lock.
"""

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollcast.services.errors import ConfigurationError

_LENGTH: Final = struct.Struct("<I")
# Kinds of dtypes: booleans, integers, floats.
_KINDS: Final = "biuf"
_MAX_HEADER_BYTES: Final = 1 << 20
_MAX_DIMENSIONS: Final = 32
# Pieces up to this size are joined and written at once: releasing the interpreter lock for each array would cost other
# threads more than the copy.
_JOINED_BYTES: Final = 2 << 20


class ArrayFileWriter:
    """A writer of a new file. For one thread, as a context manager.

    Args:
        path: The file; it must not exist.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("xb", buffering=0)
        self._digest = xxhash.xxh3_128()

    @property
    def digest(self) -> str:
        """The xxh3-128 of the written bytes, in hexadecimal digits."""
        return self._digest.hexdigest()

    def append(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Writes a chunk.

        Args:
            arrays: Arrays of booleans, integers or floats by name; copied if they are not contiguous.

        Raises:
            OSError: The chunk cannot be written.
        """
        # not ascontiguousarray, which gives 0-dimensional arrays a dimension
        contiguous = {name: np.asarray(array, array.dtype.newbyteorder("<"), "C") for name, array in arrays.items()}
        header = {name: [array.dtype.str, array.shape] for name, array in contiguous.items()}
        encoded = json.dumps(header).encode()
        content = [memoryview(_LENGTH.pack(len(encoded)) + encoded)]
        content += [array.reshape(-1).view(np.uint8).data for array in contiguous.values() if array.size]
        if sum(map(len, content)) <= _JOINED_BYTES:
            content = [memoryview(b"".join(content))]
        for part in content:
            self._write(part)

    def _write(self, content: memoryview) -> None:
        self._digest.update(content)
        while content:
            content = content[self._file.write(content) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()


def read_chunks(path: Path, names: frozenset[str] | None = None) -> Iterator[dict[str, NDArray[Any]]]:
    """Reads a file chunk by chunk.

    Args:
        path: The file.
        names: Names of the arrays to read; None: all.

    Yields:
        A chunk: new arrays by name.

    Raises:
        ConfigurationError: The file has another format, or is cut off. At most its size is allocated.
        OSError: The file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        n_left = os.fstat(file.fileno()).st_size
        while n_left:
            header, n_bytes = _read_header(file, path, n_left)
            n_left -= n_bytes
            piece = {}
            for name, (dtype, shape) in header.items():
                n_bytes = dtype.itemsize * math.prod(shape)
                if n_bytes > n_left:
                    raise _malformed(path, f"{name!r} of shape {list(shape)} extends beyond the end of the file")
                n_left -= n_bytes
                if names is not None and name not in names:
                    file.seek(n_bytes, os.SEEK_CUR)
                    continue
                piece[name] = np.empty(shape, dtype)
                if n_bytes:
                    _fill(file, path, piece[name].reshape(-1).view(np.uint8).data)
            yield piece


def _read_header(file: FileIO, path: Path, n_left: int) -> tuple[dict[str, tuple[np.dtype[Any], tuple[int, ...]]], int]:
    """Reads the header of a chunk; returns it, and the number of bytes read."""
    length = bytearray(_LENGTH.size)
    _fill(file, path, memoryview(length))
    (n_header,) = _LENGTH.unpack(length)
    if n_header > min(_MAX_HEADER_BYTES, n_left - _LENGTH.size):
        raise _malformed(path, f"a header has {n_header} bytes")
    encoded = bytearray(n_header)
    _fill(file, path, memoryview(encoded))
    try:
        header = {name: _read_form(*form) for name, form in json.loads(encoded).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _malformed(path, f"a header is {bytes(encoded[:80])!r}") from error
    return header, _LENGTH.size + n_header


def _read_form(dtype_name: str, shape: list[int]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    dtype = np.dtype(dtype_name)
    if dtype.kind not in _KINDS or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(dtype_name)
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(shape)
    return dtype, tuple(shape)


def _fill(file: FileIO, path: Path, target: memoryview) -> None:
    while target:
        n_read = file.readinto(target)
        if not n_read:
            raise _malformed(path, "it ends inside a chunk")
        target = target[n_read:]


def _malformed(path: Path, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be read: {problem}; expected chunks of arrays, as in a checkpoint; resume from another "
        "checkpoint"
    )
