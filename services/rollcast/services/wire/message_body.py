"""Writes and locates the body of a message, without a copy: the tensors' bytes at the end of the message.

Such messages are ordinary protobuf for any library. Their last field is `bytes body = 15`, so a serialised message
consists of the other fields, then tag, length and bytes of the body. Arrow Flight uses the same format for its
data_body: https://arrow.apache.org/docs/format/Flight.html.
"""

from collections.abc import Iterable
from typing import Any, Final

from numpy.typing import NDArray

from rollcast.v1 import replay_pb2, rollout_pb2

_VARINT, FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_BODY_NUMBER: Final = 15
# Below field 16 a tag is one byte.
_BODY_TAG: Final = _BODY_NUMBER << 3 | _LENGTH_DELIMITED
# rollcast's messages have fewer fields. Another message with more fields is parsed whole.
MAX_FIELDS: Final = 64
NO_BODY: Final = memoryview(b"")

for _message in (rollout_pb2.StreamRolloutsRequest, replay_pb2.SampleResponse):
    assert max(_message.DESCRIPTOR.fields_by_number) == _BODY_NUMBER
    assert _message.DESCRIPTOR.fields_by_number[_BODY_NUMBER].name == "body"


def append_body(head: bytes, pieces: Iterable[memoryview | NDArray[Any]], n_bytes: int) -> bytes:
    """Appends a body to a serialised message. Copies both only once.

    Args:
        head: The serialised message, without its body.
        pieces: C-contiguous buffers that together form the body.
        n_bytes: The number of bytes in all buffers.
    """
    return b"".join((open_body(head, n_bytes), *pieces)) if n_bytes else head  # type: ignore[arg-type]  # arrays are buffers


def open_body(head: bytes, n_bytes: int) -> bytes:
    """Returns a serialised message up to the first byte of its body. Append the body to complete the message.

    Args:
        head: The serialised message, without its body.
        n_bytes: The size of the body in bytes, at least 1.
    """
    return open_field(head, _BODY_NUMBER, n_bytes)


def open_field(head: bytes, number: int, n_bytes: int) -> bytes:
    """Returns a serialised message up to the first byte of the value of another field.

    Args:
        head: The serialised message, without the field.
        number: The number of the field, of type `bytes` or a message, at most 15.
        n_bytes: The size of the field's value in bytes.
    """
    return b"".join((head, bytes((number << 3 | _LENGTH_DELIMITED,)), varint(n_bytes)))


def split_body(serialized: bytes) -> tuple[bytes, memoryview]:
    """Splits a serialised message into its head and its body.

    Args:
        serialized: A message from any protobuf library, or any other bytes.

    Returns:
        The message without its body, and the body as a view of `serialized`. If the body is not the last field, or
        follows too many fields, the function returns all of `serialized` and an empty body. Parsing then finds the
        body.
    """
    position, n_total = 0, len(serialized)
    for _ in range(MAX_FIELDS):
        if position >= n_total:
            break
        tag = serialized[position]
        if tag == _BODY_TAG:
            n_body, start = _read_varint(serialized, position + 1)
            if start + n_body != n_total:
                break
            return serialized[:position], memoryview(serialized)[start:]
        position = skip_field(serialized, tag, position + 1)
    return serialized, NO_BODY


def skip_field(serialized: bytes, tag: int, position: int) -> int:
    """Returns the position after a field's value; the end of the message for a tag that is long or invalid."""
    wire_type = tag & 0x7
    if tag > 0x7F:
        return len(serialized)
    if wire_type == _LENGTH_DELIMITED:
        n_bytes, position = _read_varint(serialized, position)
        return position + n_bytes
    if wire_type == _VARINT:
        return _read_varint(serialized, position)[1]
    return position + {FIXED64: 8, _FIXED32: 4}.get(wire_type, len(serialized))


def varint(value: int) -> bytes:
    """Returns protobuf's encoding of a number of at least 0."""
    if value <= 0x7F:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(serialized: bytes, position: int) -> tuple[int, int]:
    """Returns the varint at a position, and the next position, which is beyond the end if there is no varint."""
    value = shift = 0
    for byte in serialized[position : position + 10]:
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    return 0, len(serialized) + 1
