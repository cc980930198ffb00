"""Stream messages with their bytes at the end, written and found without a copy.

The message is an ordinary `rollcast.v1.StreamRolloutsRequest`; any protobuf library reads and writes it. Its `body` is
its last field, so the serialised rest followed by tag, length and bytes is the serialised whole. Arrow Flight does the
same with its data_body: https://arrow.apache.org/docs/format/Flight.html.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from rollcast.v1 import rollout_pb2

_LENGTH_DELIMITED: Final = 2
_FIELDS: Final = rollout_pb2.StreamRolloutsRequest.DESCRIPTOR.fields_by_name
# Below field 16 a tag is one byte.
_BODY_TAG: Final = _FIELDS["body"].number << 3 | _LENGTH_DELIMITED
_ROLLOUT_TAGS: Final = {_FIELDS[name].number << 3 | _LENGTH_DELIMITED for name in ("rollout", "frame")}


class MessageWithBody(NamedTuple):
    """A message of a rollout stream, its body apart; `request.body` is not to be looked at."""

    request: rollout_pb2.StreamRolloutsRequest
    body: memoryview


def serialize_with_body(
    request: rollout_pb2.StreamRolloutsRequest, pieces: Iterable[memoryview], n_body_bytes: int
) -> bytes:
    """Serialises a message whose body is in pieces; copies them once.

    Args:
        request: The message, without its body.
        pieces: C-contiguous buffers that together are the body.
        n_body_bytes: How many bytes they hold.

    Returns:
        The serialised message.
    """
    head = request.SerializeToString()
    return b"".join((head, bytes((_BODY_TAG,)), _varint(n_body_bytes), *pieces)) if n_body_bytes else head


def parse_with_body(serialized: bytes) -> MessageWithBody:
    """Parses a message and finds its body.

    Args:
        serialized: The message, from any protobuf library.

    Returns:
        The message, and its body: a view of `serialized` where it is the last of two fields, as we write it; elsewhere
        a copy.

    Raises:
        google.protobuf.message.DecodeError: The bytes are no such message.
    """
    parse = rollout_pb2.StreamRolloutsRequest.FromString
    if serialized and serialized[0] in _ROLLOUT_TAGS:
        n_head, position = _read_varint(serialized, 1)
        end_of_head = position + n_head
        if end_of_head + 1 < len(serialized) and serialized[end_of_head] == _BODY_TAG:
            n_body, position = _read_varint(serialized, end_of_head + 1)
            if position + n_body == len(serialized):
                return MessageWithBody(parse(serialized[:end_of_head]), memoryview(serialized)[position:])
    request = parse(serialized)
    return MessageWithBody(request, memoryview(request.body))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(serialized: bytes, position: int) -> tuple[int, int]:
    """The varint there and the position behind it; nonsense, never an error, where there is none."""
    value = shift = 0
    for byte in serialized[position : position + 10]:
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            break
        shift += 7
    return value, position
