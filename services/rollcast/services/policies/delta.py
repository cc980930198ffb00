"""Writes a policy losslessly as its difference from an earlier version: XOR, byte planes, zstd.

Between two versions, most numbers keep their sign, exponent and part of the mantissa, so these bytes of the XOR are 0.
Byte planes (all first bytes of the numbers, then all second bytes, and so on) collect these zeros in long runs. For
numbers rounded to bfloat16, two of the four planes are all zeros.
"""

from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from rollcast.services.errors import InvalidTensorError, LimitExceededError
from rollcast.services.limits.limits import MAX_POLICY_EXPANSION

# The bytes of a float32, the dtype of nearly all numbers of a policy. Other numbers only compress less.
_N_PLANES: Final = 4
# A fast level: higher levels take ten times as long, and save a few hundredths of the size.
_LEVEL: Final = 1


def encode_delta(file: bytes, base: bytes | None) -> bytes:
    """Returns a file as its difference from a base.

    Args:
        file: The file.
        base: A file of the same size; None: a file of zeros.
    """
    changed = np.frombuffer(file, np.uint8)
    if base is not None:
        changed = changed ^ np.frombuffer(base, np.uint8)
    planes = np.empty_like(changed)
    _planes(planes)[...] = _words(changed).T
    planes[_whole(planes) :] = changed[_whole(planes) :]
    return zstandard.ZstdCompressor(level=_LEVEL).compress(planes.data)


def decode_delta(delta: bytes, base: bytes | None, *, n_bytes: int, what: str) -> bytes:
    """Returns the file that `encode_delta` has encoded.

    Args:
        delta: The result of `encode_delta`, which may be untrusted.
        base: The base that was given to `encode_delta`.
        n_bytes: The size of the file, as the sender claims. Before it allocates memory, the function compares this size
            with the header of `delta`, and with `base` or a limit.
        what: The name of the file, for messages.

    Raises:
        InvalidTensorError: The sizes contradict each other, or the bytes are not valid zstd.
        LimitExceededError: There is no base, and the file would exceed the allowed multiple of `delta`.
    """
    if base is not None and len(base) != n_bytes:
        raise InvalidTensorError(
            f"{what} has {n_bytes} bytes; expected {len(base)}, the size of its base version; get it again"
        )
    if base is None and n_bytes > MAX_POLICY_EXPANSION * len(delta):
        raise LimitExceededError(
            f"{what} has {n_bytes} bytes, compressed to {len(delta)}; expected at most {MAX_POLICY_EXPANSION} times "
            "its compressed size; get it again, in another encoding",
            limit="max_policy_expansion",
        )
    try:
        claimed = zstandard.frame_content_size(delta)
        if claimed != n_bytes:
            raise InvalidTensorError(
                f"{what} is compressed from {claimed} bytes; expected {n_bytes}, the value in its chunks; get it again"
            )
        # The window is part of the allocated memory. A whole file in one frame needs no larger window.
        decompressor = zstandard.ZstdDecompressor(max_window_size=max(n_bytes, 1024))
        planes = np.frombuffer(decompressor.decompress(delta, allow_extra_data=False), np.uint8)
    except zstandard.ZstdError as error:
        raise InvalidTensorError(
            f"{what} does not decompress: {error}; expected one frame of zstd; get it again"
        ) from error
    if len(planes) != n_bytes:
        raise InvalidTensorError(f"{what} has {len(planes)} bytes; expected {n_bytes}; get it again")
    changed = np.empty_like(planes)
    _words(changed)[...] = _planes(planes).T
    changed[_whole(planes) :] = planes[_whole(planes) :]
    if base is not None:
        changed ^= np.frombuffer(base, np.uint8)
    return changed.tobytes()


def _whole(array: NDArray[np.uint8]) -> int:
    """Returns the number of bytes in whole words."""
    return len(array) // _N_PLANES * _N_PLANES


def _words(array: NDArray[np.uint8]) -> NDArray[Any]:
    return array[: _whole(array)].reshape(-1, _N_PLANES)


def _planes(array: NDArray[np.uint8]) -> NDArray[Any]:
    return array[: _whole(array)].reshape(_N_PLANES, -1)
