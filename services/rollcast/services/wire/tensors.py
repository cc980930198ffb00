"""Encodes and decodes arrays as tensors. No other code reads a tensor's bytes.

The code computes sizes with Python's unbounded integers before it allocates memory, so no product overflows.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.services.errors import InvalidTensorError
from rollcast.services.limits.limits import MAX_RANK
from rollcast.services.wire.bools import check_bools
from rollcast.v1 import tensor_pb2

_MAX_ARRAY_BYTES: Final = (1 << 63) - 1

# Little-endian, as in the contract. These are numpy's native types on all common machines.
DTYPES: Final[dict[int, np.dtype[Any]]] = {
    tensor_pb2.DATA_TYPE_BOOL: np.dtype(np.bool_),
    tensor_pb2.DATA_TYPE_UINT8: np.dtype("u1"),
    tensor_pb2.DATA_TYPE_INT8: np.dtype("i1"),
    tensor_pb2.DATA_TYPE_INT16: np.dtype("<i2"),
    tensor_pb2.DATA_TYPE_INT32: np.dtype("<i4"),
    tensor_pb2.DATA_TYPE_INT64: np.dtype("<i8"),
    tensor_pb2.DATA_TYPE_FLOAT16: np.dtype("<f2"),
    tensor_pb2.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    tensor_pb2.DATA_TYPE_FLOAT64: np.dtype("<f8"),
    tensor_pb2.DATA_TYPE_UINT16: np.dtype("<u2"),
    tensor_pb2.DATA_TYPE_UINT32: np.dtype("<u4"),
    tensor_pb2.DATA_TYPE_UINT64: np.dtype("<u8"),
}
DTYPE_NUMBERS: Final[dict[np.dtype[Any], int]] = {dtype: number for number, dtype in DTYPES.items()}

_BOOL: Final = DTYPES[tensor_pb2.DATA_TYPE_BOOL]


def wire_array(array: NDArray[Any] | np.generic, *, what: str) -> NDArray[Any]:
    """Returns an array in the wire format, little-endian and C-contiguous; the array itself if it already is.

    Args:
        array: Any array or scalar of a dtype on the whitelist.
        what: The description of the array in messages.

    Raises:
        InvalidTensorError: The dtype is not on the whitelist, or the rank exceeds 32.
    """
    values = np.asarray(array, order="C")
    dtype = values.dtype
    if dtype not in DTYPE_NUMBERS:
        dtype = dtype.newbyteorder("<")
    if dtype not in DTYPE_NUMBERS:
        raise InvalidTensorError(
            f"{what} has dtype {values.dtype}; expected one of {_dtype_names()}; convert it before sending"
        )
    if values.ndim > MAX_RANK:
        raise _rank_error(what, values.ndim)
    return values if values.dtype == dtype else values.astype(dtype)


def _rank_error(what: str, rank: int) -> InvalidTensorError:
    return InvalidTensorError(
        f"{what} has {rank} dimensions; expected at most {MAX_RANK}; reshape it", limit="max_rank"
    )


def tensor_to_proto(
    array: NDArray[Any] | np.generic, *, deferred: bool = False, what: str = "a tensor"
) -> tensor_pb2.Tensor:
    """Encodes an array.

    Args:
        array: Any array or scalar of a dtype on the whitelist; copied, and converted to little-endian C order.
        deferred: Whether to omit the bytes, which then follow in a message body.
        what: The description of the array in messages.

    Raises:
        InvalidTensorError: The dtype is not on the whitelist, or the rank exceeds 32.
    """
    proto = tensor_pb2.Tensor()
    fill_tensor(proto, array, deferred=deferred, what=what)
    return proto


def fill_tensor(
    proto: tensor_pb2.Tensor, array: NDArray[Any] | np.generic, *, deferred: bool = False, what: str = "a tensor"
) -> None:
    """Encodes an array into a field of an unfinished message.

    protobuf copies a message in another message's constructor, once for each level. This function avoids these copies.

    Args:
        proto: The field, empty.
        array: Any array or scalar of a dtype on the whitelist; copied, and converted to little-endian C order.
        deferred: Whether to omit the bytes, which then follow in a message body.
        what: The description of the array in messages.

    Raises:
        InvalidTensorError: The dtype is not on the whitelist, or the rank exceeds 32.
    """
    values = wire_array(array, what=what)
    proto.dtype = DTYPE_NUMBERS[values.dtype]  # type: ignore[assignment]  # the stub's enum class is for checkers only
    proto.shape.extend(values.shape)
    if deferred:
        proto.deferred = True
    else:
        proto.data = values.tobytes()


def tensor_header(
    proto: tensor_pb2.Tensor, *, dtype: np.dtype[Any] | None = None, shape: Sequence[int] | None = None, what: str
) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Checks a tensor except its bytes, without allocating memory for them.

    Args:
        proto: The tensor.
        dtype: The required dtype; None: any dtype on the whitelist.
        shape: The required shape, with -1 for any size; None: any shape.
        what: The description of the tensor in messages.

    Returns:
        The tensor's dtype, its shape, and its size in bytes.

    Raises:
        InvalidTensorError: The dtype or shape is malformed or not as required.
    """
    actual_dtype = DTYPES.get(proto.dtype)
    if actual_dtype is None:
        raise InvalidTensorError(
            f"{what} has dtype number {proto.dtype}; expected one of {_dtype_names()}; see rollcast.v1.DataType"
        )
    if dtype is not None and actual_dtype != dtype:
        raise InvalidTensorError(f"{what} has dtype {actual_dtype}; expected {dtype}; convert it before sending")
    if len(proto.shape) > MAX_RANK:
        raise _rank_error(what, len(proto.shape))
    actual_shape = tuple(proto.shape)
    if any(dimension < 0 for dimension in actual_shape):
        raise InvalidTensorError(f"{what} has shape {list(actual_shape)}; expected no negative dimension; correct it")
    if shape is not None and not _fits(actual_shape, shape):
        expected = ", ".join("N" if dimension < 0 else str(dimension) for dimension in shape)
        raise InvalidTensorError(f"{what} has shape {list(actual_shape)}; expected [{expected}]; send the agreed shape")
    n_bytes = math.prod(actual_shape) * actual_dtype.itemsize
    if not n_bytes and math.prod(filter(None, actual_shape)) * actual_dtype.itemsize > _MAX_ARRAY_BYTES:
        # The tensor has no bytes, but numpy would refuse to make it. Every other size is compared with the content's
        # size.
        raise InvalidTensorError(
            f"{what} has shape {list(actual_shape)}; expected less than 2**63 bytes without its dimensions of 0; "
            "correct it"
        )
    return actual_dtype, actual_shape, n_bytes


def tensor_from_proto(
    proto: tensor_pb2.Tensor, *, dtype: np.dtype[Any] | None = None, shape: Sequence[int] | None = None, what: str
) -> NDArray[Any]:
    """Decodes a tensor with inline bytes.

    Args:
        proto: The tensor.
        dtype: The required dtype; None: any dtype on the whitelist.
        shape: The required shape, with -1 for any size; None: any shape.
        what: The description of the tensor in messages.

    Returns:
        A read-only view of the tensor's bytes, which keeps the bytes alive, but not the message.

    Raises:
        InvalidTensorError: The dtype, shape or size is not as required, the tensor is deferred, or a bool is neither 0
            nor 1.
    """
    actual_dtype, actual_shape, n_bytes = tensor_header(proto, dtype=dtype, shape=shape, what=what)
    if proto.deferred:
        raise InvalidTensorError(f"{what} is deferred; expected its bytes: only a rollout on a stream may defer them")
    return tensor_content(proto, actual_dtype, actual_shape, n_bytes, what=what)


def tensor_content(
    proto: tensor_pb2.Tensor, dtype: np.dtype[Any], shape: tuple[int, ...], n_bytes: int, *, what: str
) -> NDArray[Any]:
    """Decodes the bytes of a tensor with a checked header.

    Args:
        proto: The tensor.
        dtype: The tensor's dtype.
        shape: The tensor's shape.
        n_bytes: The size for dtype and shape, in bytes.
        what: The description of the tensor in messages.

    Returns:
        A read-only view of the tensor's bytes, which keeps the bytes alive, but not the message.

    Raises:
        InvalidTensorError: The size does not match dtype and shape, or a bool is neither 0 nor 1.
    """
    content = proto.data  # read once: upb copies the bytes at every read
    if len(content) != n_bytes:
        raise InvalidTensorError(
            f"{what} has {len(content)} bytes; expected {n_bytes} for {dtype} {list(shape)}; send them"
        )
    values: NDArray[Any] = np.ndarray(shape, dtype, content)
    if dtype == _BOOL:
        check_bools(values, what=what)
    return values


def _fits(actual: tuple[int, ...], expected: Sequence[int]) -> bool:
    return len(actual) == len(expected) and all(e in (-1, a) for a, e in zip(actual, expected, strict=True))


def _dtype_names() -> str:
    return ", ".join(dtype.name for dtype in DTYPES.values())
