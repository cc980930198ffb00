"""Rounds policies to bfloat16, and writes rounded policies in half the bytes. The arrays stay float32."""

import json
from typing import Any, Final

import numpy as np
import safetensors
from numpy.typing import NDArray

from rollcast.services.policies.policies import PolicyState

_EXPONENT: Final = np.uint32(0x7F800000)
_UPPER: Final = np.uint32(0xFFFF0000)
_QUIET: Final = np.uint32(0x00400000)
# By their names in safetensors files; numpy has no bfloat16.
_DTYPES: Final = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "F16": np.float16,
    "U32": np.uint32,
    "I32": np.int32,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "F64": np.float64,
}
_LENGTH_BYTES: Final = 8


def rounded_to_bfloat16(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns float32 numbers rounded to the nearest bfloat16, ties to even, as float32.

    Finite numbers stay finite, because the largest numbers are rounded towards zero. NaN stays NaN.

    Args:
        array: float32, of any shape. The function does not change it.
    """
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF)
    rounded += (bits >> np.uint32(16)) & np.uint32(1)
    special = ((bits & _EXPONENT) == _EXPONENT) | ((rounded & _EXPONENT) == _EXPONENT)
    rounded &= _UPPER
    if special.any():
        kept = bits[special] & _UPPER
        kept[np.isnan(bits[special].view(np.float32))] |= _QUIET
        rounded[special] = kept
    return rounded.view(np.float32).reshape(array.shape)


def narrow_file(file: bytes) -> bytes:
    """Writes a policy's safetensors file with bfloat16 in place of float32, for every tensor that stays exact.

    Args:
        file: The file, as `encode_policy` makes it.

    Returns:
        A safetensors file of the same tensors, in the same order. safetensors' own writer cannot write bfloat16 from
        numpy.
    """
    start = _LENGTH_BYTES + int.from_bytes(file[:_LENGTH_BYTES], "little")
    header: dict[str, dict[str, Any]] = json.loads(file[_LENGTH_BYTES:start])
    header.pop("__metadata__", None)
    pieces: list[bytes | memoryview] = []
    end = 0
    for tensor in sorted(header.values(), key=lambda tensor: tensor["data_offsets"]):
        begin, stop = tensor["data_offsets"]
        data: bytes | memoryview = memoryview(file)[start + begin : start + stop]
        if tensor["dtype"] == "F32":
            bits = np.frombuffer(data, np.uint32)
            if not (bits & ~_UPPER).any():
                tensor["dtype"], data = "BF16", (bits >> np.uint32(16)).astype(np.uint16).tobytes()
        tensor["data_offsets"] = [end, end := end + len(data)]
        pieces.append(data)
    written = json.dumps(header, separators=(",", ":")).encode()
    written += b" " * (-len(written) % _LENGTH_BYTES)
    return b"".join((len(written).to_bytes(_LENGTH_BYTES, "little"), written, *pieces))


def read_narrow_file(file: bytes) -> PolicyState:
    """Reads the file of `narrow_file`, or any other safetensors file, with float32 in place of bfloat16.

    Args:
        file: The file, which may be untrusted.

    Raises:
        safetensors.SafetensorError: The file is not a safetensors file.
        KeyError: The file has an unsupported dtype.
    """
    state: dict[str, NDArray[np.generic]] = {}
    for name, tensor in safetensors.deserialize(file):  # type: ignore[no-untyped-call]  # of safetensors
        if not tensor["data"]:
            dtype = np.float32 if tensor["dtype"] == "BF16" else _DTYPES[tensor["dtype"]]
            state[name] = np.zeros(tensor["shape"], dtype)
        elif tensor["dtype"] == "BF16":
            bits = np.frombuffer(tensor["data"], np.uint16).astype(np.uint32) << np.uint32(16)
            state[name] = bits.view(np.float32).reshape(tensor["shape"])
        else:
            state[name] = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    return state
