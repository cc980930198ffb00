"""Seals messages with a digest, and finds those that were damaged on their way."""

from collections.abc import Iterable
from typing import Any, Final, Protocol, Self, TypeVar

import xxhash
from numpy.typing import NDArray

from rollcast.services.errors import DamagedMessageError
from rollcast.services.wire.message_body import FIXED64, MAX_FIELDS, NO_BODY, skip_field
from rollcast.v1 import policy_pb2, rollout_pb2

_DIGEST_NUMBER: Final = 14
# Below field 16 a tag is one byte.
_DIGEST_TAG: Final = _DIGEST_NUMBER << 3 | FIXED64
_DIGEST_TAG_BYTES: Final = bytes((_DIGEST_TAG,))
_N_DIGEST_BYTES: Final = 9

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


_Message = TypeVar("_Message", bound=SealedMessage)


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
    for _ in range(MAX_FIELDS):
        if position >= end:
            break
        position = skip_field(head, head[position], position + 1)
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
    is_sealed = matches_seal(serialized, NO_BODY, max(len(serialized) - _N_DIGEST_BYTES, 0))
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
