"""Seals messages with a digest, and detects damaged messages."""

from collections.abc import Iterable
from typing import Any, Final, Protocol, Self, TypeVar

import xxhash
from numpy.typing import NDArray

from rollcast.services.errors import DamagedMessageError
from rollcast.services.wire.message_body import FIXED64, MAX_FIELDS, NO_BODY, skip_field
from rollcast.v1 import environment_pb2, inference_pb2, policy_pb2, recording_pb2, relay_pb2, rollout_pb2

_DIGEST_NUMBER: Final = 14
# Below field 16 a tag is one byte.
_DIGEST_TAG: Final = _DIGEST_NUMBER << 3 | FIXED64
_DIGEST_TAG_BYTES: Final = bytes((_DIGEST_TAG,))
# The bytes that a digest adds to a message.
N_DIGEST_BYTES: Final = 9

_LACKS_DIGEST: Final = "it has no digest, and the first of its stream had one"

for _sealed in (
    rollout_pb2.JoinRequest,
    rollout_pb2.JoinResponse,
    rollout_pb2.StreamRolloutsRequest,
    rollout_pb2.StreamRolloutsResponse,
    rollout_pb2.ReportEvaluationRequest,
    rollout_pb2.ReportEvaluationResponse,
    relay_pb2.StreamBundlesRequest,
    relay_pb2.StreamBundlesResponse,
    policy_pb2.GetPolicyResponse,
    policy_pb2.SubscribePolicyResponse,
    recording_pb2.RecordingHeader,
    rollout_pb2.Rollout,
    environment_pb2.PlayRequest,
    environment_pb2.PlayResponse,
    inference_pb2.InferRequest,
    inference_pb2.InferResponse,
):
    assert _sealed.DESCRIPTOR.fields_by_number[_DIGEST_NUMBER].name == "digest"


class SealedMessage(Protocol):
    """A protobuf message that has a digest."""

    digest: int

    @classmethod
    def FromString(cls, s: bytes, /) -> Self:  # noqa: N802  # protobuf's name
        """Parses the message."""


_Message = TypeVar("_Message", bound=SealedMessage)


def seal(head: bytes, pieces: Iterable[memoryview | NDArray[Any]] = ()) -> bytes:
    """Appends a digest, XXH3-64 with seed 0, to a serialised message. The field of the body may follow.

    Args:
        head: The serialised message, without digest and body.
        pieces: C-contiguous buffers that together form the body.
    """
    digest = xxhash.xxh3_64(head)
    for piece in pieces:
        digest.update(piece)  # type: ignore[arg-type]  # arrays are buffers
    return b"".join((head, _DIGEST_TAG_BYTES, digest.intdigest().to_bytes(8, "little")))


def seal_joined(*pieces: bytes | memoryview) -> bytes:
    """Joins the parts of a serialised message, and appends a digest. Copies the parts only once."""
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(piece)
    return b"".join((*pieces, _DIGEST_TAG_BYTES, digest.intdigest().to_bytes(8, "little")))


def find_seal(head: bytes) -> int | None:
    """Returns the position of the digest at the end of a message without its body; None if there is no digest.

    Args:
        head: The message without its body, from `split_body`.

    Returns:
        The number of sealed bytes before the digest.
    """
    end = len(head) - N_DIGEST_BYTES
    if end < 0 or head[end] != _DIGEST_TAG:
        return None
    position = 0
    for _ in range(MAX_FIELDS):
        if position >= end:
            break
        position = skip_field(head, head[position], position + 1)
    return end if position == end else None


def matches_seal(head: bytes, body: memoryview, n_sealed: int) -> bool:
    """Returns whether a message matches its digest.

    Args:
        head: The message without its body.
        body: The body of the message.
        n_sealed: From `find_seal`.
    """
    digest = xxhash.xxh3_64(memoryview(head)[:n_sealed])
    digest.update(body)
    return digest.intdigest() == int.from_bytes(head[n_sealed + 1 :], "little")


def ends_with_seal(serialized: bytes) -> bool:
    """Returns whether a message without a body ends with a digest, and matches it."""
    n_sealed = len(serialized) - N_DIGEST_BYTES
    return n_sealed >= 0 and serialized[n_sealed] == _DIGEST_TAG and matches_seal(serialized, NO_BODY, n_sealed)


def parse_sealed(message_class: type[_Message], serialized: bytes) -> _Message:
    """Parses a message without a body, after a comparison with its digest, if any.

    Args:
        message_class: The class of the message.
        serialized: The message.

    Raises:
        google.protobuf.message.DecodeError: The bytes do not parse as the message.
        DamagedMessageError: The bytes do not match their digest.
    """
    # The digest nearly always matches, and then no field needs a look.
    is_sealed = matches_seal(serialized, NO_BODY, max(len(serialized) - N_DIGEST_BYTES, 0))
    if not is_sealed and find_seal(serialized) is not None:
        raise damaged(f"the digest of its {len(serialized)} bytes does not match")
    message = message_class.FromString(serialized)
    if not is_sealed and message.digest:
        raise damaged(f"the digest of its {len(serialized)} bytes is not at their end")
    return message


def _was_sealed(serialized: bytes) -> bool:
    """Returns whether a message without a body ends with a digest, or did so before its lengths were damaged."""
    end = len(serialized) - N_DIGEST_BYTES
    if end < 0 or serialized[end] != _DIGEST_TAG:
        return False
    start = position = 0
    for _ in range(MAX_FIELDS):
        if position >= len(serialized):
            break
        start, position = position, skip_field(serialized, serialized[position], position + 1)
    # Otherwise the last field is another, in which the byte only looks like a digest's.
    return start == end or position != len(serialized)


class StreamSeals:
    """Opens the messages of one direction of a stream, which have no bodies. Only one thread at a time may use it.

    If the first message has a digest, every message must match its own. The reader then needs no look at the fields: a
    message without a matching digest at its end was damaged, even if it no longer parses.

    Attributes:
        is_sealed: Whether the first message had a digest; False before it.
    """

    def __init__(self) -> None:
        self._has_begun = self.is_sealed = False

    def open(self, serialized: bytes) -> bytes:
        """Returns the next message, without its digest if the stream is sealed.

        Args:
            serialized: The message.

        Raises:
            DamagedMessageError: The message does not match its digest, or lacks one.
        """
        if not self._has_begun:
            self._has_begun, self.is_sealed = True, _was_sealed(serialized)
        if not self.is_sealed:
            return serialized
        if ends_with_seal(serialized):
            return serialized[:-N_DIGEST_BYTES]
        if serialized[-N_DIGEST_BYTES : 1 - N_DIGEST_BYTES] == _DIGEST_TAG_BYTES:
            raise damaged(f"the digest of its {len(serialized)} bytes does not match")
        raise damaged(_LACKS_DIGEST)


class MessageChain:
    """Checks the messages of one direction of a call: none may be lost, or lack a digest that the first one had.

    Only one thread may use it.
    """

    def __init__(self) -> None:
        self._n_messages = 0
        self._is_sealed = self._is_numbered = False

    def check(self, digest: int, number: int) -> None:
        """Checks the next message.

        Args:
            digest: The message's digest; 0: none.
            number: The message's number in the call, from 1; 0: none.

        Raises:
            DamagedMessageError: The message has no digest, or the previous message was lost.
        """
        self._n_messages += 1
        if self._n_messages == 1:
            self._is_sealed, self._is_numbered = bool(digest), bool(number)
        if self._is_sealed and not digest:
            raise damaged(_LACKS_DIGEST)
        if self._is_numbered and number != self._n_messages:
            raise damaged(f"it is number {number} of its call, and number {self._n_messages} has not arrived")


def damaged(how: str) -> DamagedMessageError:
    """Makes the error for a damaged message.

    Args:
        how: The sign of the damage.
    """
    return DamagedMessageError(
        f"a message was damaged in transit: {how}; expected an intact one; join again with backoff and send it again"
    )
