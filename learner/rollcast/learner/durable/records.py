"""Encodes a rollout as a record of the write-ahead log, and decodes records.

    head      marker of the segment (16), sizes of entry and rollout (4, 4, 8), their digest (8), the head's digest (8)
    entry     JSON: number in the log, actor, process, sequence, policy version
    rollout   its serialised header, then its tensors' bytes, from `RolloutEncoder.head_and_arrays`
    tail      the marker, every bit inverted (16), size of the record so far (8), digest of these two (8)

Numbers are little-endian, digests XXH3-64. Every segment has its own random marker, so bytes from an earlier use of the
file are never read as a record. The tail distinguishes a damaged head from a record that was never written.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from rollcast.services.errors import RecordingError

N_MARKER: Final = 16
HEAD: Final = struct.Struct("<16sIIQQQ")
TAIL: Final = struct.Struct("<16sQQ")
# Enough for a name of 128 characters and a thousand replaced processes.
MAX_ENTRY_BYTES: Final = 1 << 16
_N_DIGEST: Final = 8

Chunk = bytes | memoryview

_Unsigned = Annotated[int, Field(ge=0, lt=1 << 64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """The entry of a rollout in the log, which can be read without decoding the rollout.

    Attributes:
        number: The rollout's number in the log, from 0, never reused.
        actor_id: The name of the actor.
        slot: The actor's slot.
        incarnation: The number of processes under the actor's name so far.
        process_nonce: Identifies the actor's process.
        replaced_nonces: The nonces of earlier processes under the name.
        n_envs: Number of the actor's environments.
        sequence: The rollout's number within the incarnation, from 1.
        n_trajectories: B.
        policy_version: The version that acted.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    # The next number and the next policy version must fit into 64 bits, too.
    number: Annotated[int, Field(ge=0, lt=1 << 63)]
    actor_id: str
    slot: Annotated[int, Field(ge=0, lt=1 << 32)]
    incarnation: _Unsigned
    process_nonce: _Unsigned
    replaced_nonces: tuple[_Unsigned, ...]
    n_envs: Annotated[_Unsigned, Field(gt=0)]
    sequence: _Unsigned
    n_trajectories: Annotated[_Unsigned, Field(gt=0)]
    policy_version: Annotated[int, Field(ge=0, lt=1 << 63)]

    def encode(self) -> bytes:
        """Encodes the entry as JSON."""
        # not asdict, which copies: this runs for every rollout
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, separators=(",", ":")).encode()

    @staticmethod
    def decode(encoded: bytes) -> "LogEntry":
        """Decodes the result of `encode`.

        Raises:
            RecordingError: The bytes are not an entry.
        """
        try:
            return _ENTRY.validate_json(encoded, strict=True)
        except ValidationError as error:
            raise RecordingError(
                f"{encoded[:80]!r} is not the entry of a rollout; expected one that this program wrote"
            ) from error


_ENTRY: Final = TypeAdapter(LogEntry)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHead:
    """The head of a record, and its entry.

    Attributes:
        entry: The entry of the rollout.
        n_head: Bytes of the rollout's header.
        n_body: Bytes of its tensors.
        start: Position of the record in its file.
        payload_start: Position of the rollout.
        payload_digest: Digest of the rollout.
    """

    entry: LogEntry
    n_head: int
    n_body: int
    start: int
    payload_start: int
    payload_digest: int

    @property
    def tail_start(self) -> int:
        """The position of the record's tail."""
        return self.payload_start + self.n_head + self.n_body

    @property
    def end(self) -> int:
        """The position of the next record."""
        return self.tail_start + TAIL.size


@dataclass(frozen=True, slots=True)
class Payload:
    """An encoded rollout with its digest; its tensors are views.

    Attributes:
        pieces: The serialised header, then the tensors' bytes.
        n_body: Bytes of the tensors.
        digest: Digest of all pieces.
    """

    pieces: Sequence[Chunk]
    n_body: int
    digest: int

    @classmethod
    def of(cls, head: bytes, tensors: Sequence[NDArray[Any]]) -> Self:
        """Makes a payload from the result of `RolloutEncoder.head_and_arrays`."""
        body = [tensor.reshape(-1).view(np.uint8).data for tensor in tensors]
        digest = xxhash.xxh3_64(head)
        for piece in body:
            digest.update(piece)
        return cls((head, *body), sum(map(len, body)), digest.intdigest())

    @property
    def n_bytes(self) -> int:
        """The bytes of all pieces."""
        return len(self.pieces[0]) + self.n_body


def record_bytes(entry: bytes, payload: Payload) -> int:
    """Returns the bytes of a record in its file."""
    return HEAD.size + len(entry) + payload.n_bytes + TAIL.size


def encode_record(marker: bytes, entry: bytes, payload: Payload) -> list[Chunk]:
    """Encodes a record.

    Args:
        marker: The marker of its segment.
        entry: The encoded entry.
        payload: The rollout.

    Returns:
        The chunks to write, in order.
    """
    n_head = len(payload.pieces[0])
    fixed = HEAD.pack(marker, len(entry), n_head, payload.n_body, payload.digest, 0)[:-_N_DIGEST]
    fixed += xxhash.xxh3_64_intdigest(fixed + entry).to_bytes(_N_DIGEST, "little")
    return [fixed, entry, *payload.pieces, encode_tail(marker, record_bytes(entry, payload) - TAIL.size)]


def encode_tail(marker: bytes, n_before: int) -> bytes:
    """Encodes the tail of a record with `n_before` bytes before the tail."""
    fixed = TAIL.pack(inverted(marker), n_before, 0)[:-_N_DIGEST]
    return fixed + xxhash.xxh3_64_intdigest(fixed).to_bytes(_N_DIGEST, "little")


def inverted(marker: bytes) -> bytes:
    """Returns the marker of tails: every bit of the segment's marker inverted."""
    return bytes(byte ^ 0xFF for byte in marker)


def decode_head(marker: bytes, content: bytes, start: int) -> RecordHead | None:
    """Decodes the head of a record, and its entry.

    Args:
        marker: The marker of the segment.
        content: Bytes of the file, enough for any head and entry, or up to its end.
        start: Position of `content` in the file.

    Returns:
        The head; None if it is missing or damaged.
    """
    if len(content) < HEAD.size or content[:N_MARKER] != marker:
        return None
    _, n_entry, n_head, n_body, payload_digest, digest = HEAD.unpack_from(content)
    end = HEAD.size + n_entry
    if n_entry > MAX_ENTRY_BYTES or len(content) < end:
        return None
    encoded = content[HEAD.size : end]
    if xxhash.xxh3_64_intdigest(content[: HEAD.size - _N_DIGEST] + encoded) != digest:
        return None
    try:
        entry = LogEntry.decode(encoded)
    except RecordingError:
        return None
    return RecordHead(
        entry=entry,
        n_head=n_head,
        n_body=n_body,
        start=start,
        payload_start=start + end,
        payload_digest=payload_digest,
    )


def decode_tail(marker: bytes, content: bytes) -> int | None:
    """Returns the bytes of a record before its tail; None if the tail is missing or damaged."""
    if len(content) < TAIL.size or content[:N_MARKER] != inverted(marker):
        return None
    _, n_before, _ = TAIL.unpack_from(content)
    return int(n_before) if content[: TAIL.size] == encode_tail(marker, n_before) else None
