"""One rollout in the write-ahead log, as bytes.

    head      marker of the segment (16), sizes of what follows (4, 4, 8), their digest (8), the head's own digest (8)
    entry     JSON: number in the log, actor, process, sequence, policy version
    rollout   its serialised header, then its tensors' bytes, as `RolloutEncoder.pieces` makes them
    tail      the marker, every bit inverted (16), size of all before it (8), digest of these two (8)

Numbers are little-endian, digests XXH3-64. A marker is random and of one segment only, so what a file held before
it was used again is never taken for a record. The tail tells a record whose head is damaged from one that was never
written.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollcast.services.errors import RecordingError

N_MARKER: Final = 16
HEAD: Final = struct.Struct("<16sIIQQQ")
TAIL: Final = struct.Struct("<16sQQ")
# Names have 128 characters; a name that was taken over a thousand times has as many numbers of processes.
MAX_ENTRY_BYTES: Final = 1 << 16
_N_DIGEST: Final = 8

Piece = bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """What the log says about a rollout without decoding it.

    Attributes:
        number: Its place in the log, from 0, never used again.
        actor_id: Who played it.
        slot: The actor's slot.
        incarnation: Which of the actor's processes.
        process_nonce: That process.
        replaced_nonces: The processes that had the name before.
        n_envs: Environments of the actor.
        sequence: 1, 2, 3, ... within the incarnation.
        n_trajectories: B.
        policy_version: The version that acted.
    """

    number: int
    actor_id: str
    slot: int
    incarnation: int
    process_nonce: int
    replaced_nonces: tuple[int, ...]
    n_envs: int
    sequence: int
    n_trajectories: int
    policy_version: int

    def encode(self) -> bytes:
        """As JSON."""
        # not asdict, which copies: this is done for every rollout
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Reads what `encode` wrote.

        Raises:
            RecordingError: It is something else.
        """
        try:
            values = json.loads(encoded)
            values["replaced_nonces"] = tuple(values["replaced_nonces"])
            entry = cls(**values)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise _no_entry(encoded) from error
        numbers = [getattr(entry, field.name) for field in fields(cls) if field.type is int]
        if not all(type(value) is int and 0 <= value < 1 << 64 for value in (*numbers, *entry.replaced_nonces)):
            raise _no_entry(encoded)
        # this run's next number and next policy version have 64 bits, too
        if entry.slot >= 1 << 32 or max(entry.number, entry.policy_version) >= 1 << 63:
            raise _no_entry(encoded)
        if type(entry.actor_id) is not str or not entry.n_envs or not entry.n_trajectories:
            raise _no_entry(encoded)
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHead:
    """The head of a record, and its entry.

    Attributes:
        entry: What it is.
        n_head: Bytes of the rollout's header.
        n_body: Bytes of its tensors.
        start: Where the record begins in its file.
        payload_start: Where the rollout begins.
        payload_digest: Of the rollout.
    """

    entry: LogEntry
    n_head: int
    n_body: int
    start: int
    payload_start: int
    payload_digest: int

    @property
    def tail_start(self) -> int:
        """Where its tail begins."""
        return self.payload_start + self.n_head + self.n_body

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.tail_start + TAIL.size


@dataclass(frozen=True, slots=True)
class Payload:
    """A rollout, encoded and digested; its tensors are views.

    Attributes:
        pieces: Its serialised header, then its tensors' bytes.
        n_body: Bytes of its tensors.
        digest: Of all of it.
    """

    pieces: Sequence[Piece]
    n_body: int
    digest: int

    @classmethod
    def of(cls, head: bytes, tensors: Sequence[NDArray[Any]]) -> Self:
        """Digests what `RolloutEncoder.pieces` returned."""
        body = [tensor.reshape(-1).view(np.uint8).data for tensor in tensors]
        digest = xxhash.xxh3_64(head)
        for piece in body:
            digest.update(piece)
        return cls((head, *body), sum(map(len, body)), digest.intdigest())

    @property
    def n_bytes(self) -> int:
        """All of it."""
        return len(self.pieces[0]) + self.n_body


def record_bytes(entry: bytes, payload: Payload) -> int:
    """What a record takes in its file."""
    return HEAD.size + len(entry) + payload.n_bytes + TAIL.size


def encode_record(marker: bytes, entry: bytes, payload: Payload) -> list[Piece]:
    """Encodes a record.

    Args:
        marker: Of the segment that it is written to.
        entry: What it is, encoded.
        payload: The rollout.

    Returns:
        What is written, one after the other.
    """
    n_head = len(payload.pieces[0])
    fixed = HEAD.pack(marker, len(entry), n_head, payload.n_body, payload.digest, 0)[:-_N_DIGEST]
    fixed += xxhash.xxh3_64_intdigest(fixed + entry).to_bytes(_N_DIGEST, "little")
    return [fixed, entry, *payload.pieces, encode_tail(marker, record_bytes(entry, payload) - TAIL.size)]


def encode_tail(marker: bytes, n_before: int) -> bytes:
    """The tail of a record of so many bytes before it."""
    fixed = TAIL.pack(inverted(marker), n_before, 0)[:-_N_DIGEST]
    return fixed + xxhash.xxh3_64_intdigest(fixed).to_bytes(_N_DIGEST, "little")


def inverted(marker: bytes) -> bytes:
    """What a tail begins with."""
    return bytes(byte ^ 0xFF for byte in marker)


def decode_head(marker: bytes, content: bytes, start: int) -> RecordHead | None:
    """Reads the head of a record and its entry.

    Args:
        marker: Of the segment.
        content: What the file has there: enough for any head and entry, or up to its end.
        start: Where `content` begins in the file.

    Returns:
        The head; None: there is none, or it is damaged.
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
    """How many bytes of its record there are before a tail; None: this is none, or it is damaged."""
    if len(content) < TAIL.size or content[:N_MARKER] != inverted(marker):
        return None
    _, n_before, _ = TAIL.unpack_from(content)
    return int(n_before) if content[: TAIL.size] == encode_tail(marker, n_before) else None


def _no_entry(encoded: bytes) -> RecordingError:
    return RecordingError(f"{encoded[:80]!r} is not the entry of a rollout; expected what this program writes")
