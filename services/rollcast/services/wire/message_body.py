"""Messages with the bytes of their tensors at the end, written and found without a copy.

They are ordinary protobuf messages, which any library reads and writes. Their last field is `bytes body = 15`, so the
serialised rest followed by tag, length and bytes is the serialised whole. Arrow Flight does the same with its
data_body: https://arrow.apache.org/docs/format/Flight.html.
"""

from collections.abc import Iterable
from typing import Any, Final, Protocol, Self, TypeVar

import xxhash
from numpy.typing import NDArray

from rollcast.services.errors import DamagedMessageError
from rollcast.v1 import policy_pb2, replay_pb2, rollout_pb2

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_BODY_NUMBER: Final = 15
_DIGEST_NUMBER: Final = 14
# Below field 16 a tag is one byte.
_DIGEST_TAG: Final = _DIGEST_NUMBER << 3 | _FIXED64
_DIGEST_TAG_BYTES: Final = bytes((_DIGEST_TAG,))
_N_DIGEST_BYTES: Final = 9
_BODY_TAG: Final = _BODY_NUMBER << 3 | _LENGTH_DELIMITED
# Messages of ours have fewer; somebody else's with more are parsed whole.
_MAX_FIELDS: Final = 64
_NO_BODY: Final = memoryview(b"")

for _message in (rollout_pb2.StreamRolloutsRequest, replay_pb2.SampleResponse):
    assert max(_message.DESCRIPTOR.fields_by_number) == _BODY_NUMBER
    assert _message.DESCRIPTOR.fields_by_number[_BODY_NUMBER].name == "body"
for _sealed in (
    rollout_pb2.JoinRequest,
    rollout_pb2.JoinResponse,
    rollout_pb2.StreamRolloutsRequest,
    rollout_pb2.StreamRolloutsResponse,
    policy_pb2.GetPolicyResponse,
    policy_pb2.SubscribePolicyResponse,
):
    assert _sealed.DESCRIPTOR.fields_by_number[_DIGEST_NUMBER].name == "digest"


class SealedMessage(Protocol):
    """A protobuf message with a digest."""

    digest: int

    @classmethod
    def FromString(cls, s: bytes, /) -> Self:  # noqa: N802  # protobuf's name
        """Parses it."""


def append_body(head: bytes, pieces: Iterable[memoryview | NDArray[Any]], n_bytes: int) -> bytes:
    """Puts a body behind a serialised message; copies both once.

    Args:
        head: The serialised message, without its body.
        pieces: C-contiguous buffers that together are the body.
        n_bytes: How many bytes they hold.

    Returns:
        The serialised message, with its body.
    """
    return b"".join((open_body(head, n_bytes), *pieces)) if n_bytes else head  # type: ignore[arg-type]  # arrays are buffers


def open_body(head: bytes, n_bytes: int) -> bytes:
    """A serialised message up to its body's first byte.

    Args:
        head: The serialised message, without its body.
        n_bytes: How many bytes the body will have, at least 1.

    Returns:
        What, followed by the body, is the serialised message.
    """
    return b"".join((head, bytes((_BODY_TAG,)), _varint(n_bytes)))


def seal(head: bytes, pieces: Iterable[memoryview | NDArray[Any]] = ()) -> bytes:
    """Appends its digest to a serialised message: XXH3-64 with seed 0.

    Args:
        head: The serialised message, without digest and body.
        pieces: C-contiguous buffers that together are the body.

    Returns:
        What, followed by the body's field, is the serialised message.
    """
    digest = xxhash.xxh3_64(head)
    for piece in pieces:
        digest.update(piece)  # type: ignore[arg-type]  # arrays are buffers
    return b"".join((head, _DIGEST_TAG_BYTES, digest.intdigest().to_bytes(8, "little")))


def find_seal(head: bytes) -> int | None:
    """Where the digest begins with which a message ends, its body apart.

    Args:
        head: The message without its body, as `split_body` finds it.

    Returns:
        How many bytes before it are sealed; None where there is no digest at the end.
    """
    end = len(head) - _N_DIGEST_BYTES
    if end < 0 or head[end] != _DIGEST_TAG:
        return None
    position = 0
    for _ in range(_MAX_FIELDS):
        if position >= end:
            break
        position = _skip_field(head, head[position], position + 1)
    return end if position == end else None


def matches_seal(head: bytes, body: memoryview, n_sealed: int) -> bool:
    """Whether a message is what its writer sealed.

    Args:
        head: The message without its body.
        body: Its body.
        n_sealed: From `find_seal`.
    """
    digest = xxhash.xxh3_64(memoryview(head)[:n_sealed])
    digest.update(body)
    return digest.intdigest() == int.from_bytes(head[n_sealed + 1 :], "little")


_Message = TypeVar("_Message", bound=SealedMessage)


def parse_sealed(message_class: type[_Message], serialized: bytes) -> _Message:
    """Parses a message that has no body.

    Args:
        message_class: Its class.
        serialized: The message.

    Returns:
        The message; with a digest, it is what its writer sealed.

    Raises:
        google.protobuf.message.DecodeError: The bytes are no such message.
        DamagedMessageError: They are not those that their writer sealed.
    """
    # nearly always it does, and no field need be looked at
    is_sealed = matches_seal(serialized, _NO_BODY, max(len(serialized) - _N_DIGEST_BYTES, 0))
    if not is_sealed and find_seal(serialized) is not None:
        raise damaged(f"the digest of its {len(serialized)} bytes is another's")
    message = message_class.FromString(serialized)
    if not is_sealed and message.digest:
        raise damaged(f"the digest of its {len(serialized)} bytes is not where it was put, at the end")
    return message


def damaged(how: str) -> DamagedMessageError:
    """The error of a message that is not what its writer sealed.

    Args:
        how: What tells.
    """
    return DamagedMessageError(
        f"a message was damaged on its way: {how}; expected what was sent; join again with backoff and send it again"
    )


def split_body(serialized: bytes) -> tuple[bytes, memoryview]:
    """Takes a serialised message apart.

    Args:
        serialized: The message, from any protobuf library, or anything else.

    Returns:
        The message without its body, and the body as a view of `serialized`. Where the body is not the last of a
        reasonable number of fields, as we write it: all of `serialized`, and nothing; then parsing finds the body.
    """
    position, n_total = 0, len(serialized)
    for _ in range(_MAX_FIELDS):
        if position >= n_total:
            break
        tag = serialized[position]
        if tag == _BODY_TAG:
            n_body, start = _read_varint(serialized, position + 1)
            if start + n_body != n_total:
                break
            return serialized[:position], memoryview(serialized)[start:]
        position = _skip_field(serialized, tag, position + 1)
    return serialized, _NO_BODY


def _skip_field(serialized: bytes, tag: int, position: int) -> int:
    """The position behind a field's value; the end where the tag is longer than a byte, or is none."""
    wire_type = tag & 0x7
    if tag > 0x7F:
        return len(serialized)
    if wire_type == _LENGTH_DELIMITED:
        n_bytes, position = _read_varint(serialized, position)
        return position + n_bytes
    if wire_type == _VARINT:
        return _read_varint(serialized, position)[1]
    return position + {_FIXED64: 8, _FIXED32: 4}.get(wire_type, len(serialized))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(serialized: bytes, position: int) -> tuple[int, int]:
    """The varint there and the position behind it, which is beyond the end where there is none."""
    value = shift = 0
    for byte in serialized[position : position + 10]:
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    return 0, len(serialized) + 1
