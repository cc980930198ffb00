"""Writes a policy as its difference to an earlier version: XOR, byte planes, zstd. Lossless.

Between two versions most numbers keep their sign, their exponent and some of their mantissa: these bytes of the XOR are
0. In planes, all first bytes of four and so on, they are long runs of zeros. Of numbers that were rounded to bfloat16,
two of the four planes are nothing but zeros.
"""

from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from rollcast.services.errors import InvalidTensorError, LimitExceededError
from rollcast.services.limits.limits import MAX_POLICY_EXPANSION

# float32, of which nearly all of a policy consists; other numbers come through just as well, only larger.
_N_PLANES: Final = 4
# Fast: higher levels take ten times as long for a few hundredths of the size.
_LEVEL: Final = 1


def encode_delta(file: bytes, base: bytes | None) -> bytes:
    """Returns a file as its difference to another.

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
    """Returns the file that `encode_delta` was given.

    Args:
        delta: What it returned; it may come from anywhere.
        base: The file that it was given as base.
        n_bytes: The size of the file, as its sender says. Nothing is allocated before it was compared with what the
            receiver knows, and with what `delta` says of itself.
        what: What it is, for messages.

    Raises:
        InvalidTensorError: The sizes contradict each other, or the bytes are not what zstd makes.
        LimitExceededError: Without a base, the file would be too many times larger than `delta`.
    """
    if base is not None and len(base) != n_bytes:
        raise InvalidTensorError(
            f"{what} has {n_bytes} bytes; expected {len(base)}, as the version that it is the difference to; "
            "get it again"
        )
    if base is None and n_bytes > MAX_POLICY_EXPANSION * len(delta):
        raise LimitExceededError(
            f"{what} has {n_bytes} bytes, compressed to {len(delta)}; expected at most {MAX_POLICY_EXPANSION} times as "
            "many; get it again, in another encoding",
            limit="max_policy_expansion",
        )
    try:
        claimed = zstandard.frame_content_size(delta)
        if claimed != n_bytes:
            raise InvalidTensorError(
                f"{what} is compressed from {claimed} bytes; expected {n_bytes}, as its chunks say; get it again"
            )
        # The window is part of what decompressing allocates; a whole file in one frame needs no larger one.
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
    """Returns the bytes in whole words."""
    return len(array) // _N_PLANES * _N_PLANES


def _words(array: NDArray[np.uint8]) -> NDArray[Any]:
    return array[: _whole(array)].reshape(-1, _N_PLANES)


def _planes(array: NDArray[np.uint8]) -> NDArray[Any]:
    return array[: _whole(array)].reshape(_N_PLANES, -1)
