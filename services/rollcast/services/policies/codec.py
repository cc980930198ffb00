"""Encodes a policy as messages for subscribers, without pickle, and each encoding of a version only once."""

import math
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Final, NamedTuple

import safetensors.numpy
import xxhash

from rollcast.services.limits.limits import MAX_CHUNK_BYTES, MAX_POLICY_EXPANSION
from rollcast.services.policies.bfloat16 import narrow_file
from rollcast.services.policies.delta import encode_delta
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.policies.policies import PolicyState
from rollcast.services.wire.message_body import open_field
from rollcast.services.wire.seal import seal_joined
from rollcast.services.wire.tensors import wire_array
from rollcast.v1 import policy_pb2

_CHUNK: Final = policy_pb2.GetPolicyResponse.CHUNK_FIELD_NUMBER
_PAYLOAD: Final = policy_pb2.PolicyChunk.PAYLOAD_FIELD_NUMBER


class PolicyBase(NamedTuple):
    """A version that can be the base of a delta."""

    version: int
    file: bytes
    digest: bytes


class EncodedPolicy:
    """One version of a policy, with every encoding that subscribers have requested. Any thread may read it.

    RPCs send the messages of an encoding unchanged. Each message is valid as a `GetPolicyResponse` and as a
    `SubscribePolicyResponse`, because both have a PolicyChunk in field 1.

    Invariant: the first thread that needs an encoding makes it, and other threads wait. So each encoding is made at
    most once.

    Attributes:
        version: The policy's version, from 1.
        file: The safetensors file.
        progress: The progress of training when the version was published, in [0, 1].
        digest: XXH3-128 of the file, 16 bytes.
        n_bytes: The size of the file, in bytes.
    """

    def __init__(self, version: int, file: bytes, progress: float = 0.0) -> None:
        self.version = version
        self.file = file
        self.progress = progress
        self.digest = xxhash.xxh3_128_digest(file)
        self.n_bytes = len(file)
        self._lock = threading.Lock()  # guards the dictionary
        self._made: dict[Hashable, _Once] = {}

    @property
    def chunks(self) -> tuple[bytes, ...]:
        """The messages for `PolicyEncoding.FULL`."""
        return self._once(PolicyEncoding.FULL, lambda: self._cut(self.file, policy_pb2.PolicyChunk()))

    @property
    def chunk(self) -> bytes:
        """The whole file as one serialised PolicyChunk, for other messages. The file must have at most 1 MiB."""

        def make() -> tuple[bytes, ...]:
            head, payload = next(self._chunks(self.file, policy_pb2.PolicyChunk()))
            return (b"".join((head, payload)),)

        return self._once("chunk", make)[0]

    def bfloat16(self) -> tuple[bytes, ...]:
        """Returns the messages for `PolicyEncoding.BFLOAT16`."""

        def make() -> tuple[bytes, ...]:
            head = policy_pb2.PolicyChunk(encoding=policy_pb2.POLICY_ENCODING_BFLOAT16)
            return self._cut(narrow_file(self.file), head)

        return self._once(PolicyEncoding.BFLOAT16, make)

    def as_base(self) -> PolicyBase:
        """Returns this version as the base of later deltas, without the messages."""
        return PolicyBase(self.version, self.file, self.digest)

    def delta(self, base: PolicyBase | None) -> tuple[bytes, ...]:
        """Returns the messages for `PolicyEncoding.DELTA`, or of the whole file if a delta would not be smaller.

        Args:
            base: The subscriber's version. If it is None or has a file of another size, a file of zeros replaces it.
        """
        if base is not None and len(base.file) != self.n_bytes:
            base = None

        def make() -> tuple[bytes, ...]:
            delta = encode_delta(self.file, None if base is None else base.file)
            # A receiver without a base refuses a delta that is compressed too well to be weights.
            if len(delta) >= self.n_bytes or (base is None and self.n_bytes > MAX_POLICY_EXPANSION * len(delta)):
                return self.chunks
            head = policy_pb2.PolicyChunk(
                encoding=policy_pb2.POLICY_ENCODING_DELTA,
                base_version=0 if base is None else base.version,
                file_bytes=self.n_bytes,
                file_digest=self.digest,
            )
            return self._cut(delta, head)

        # By version and digest: two equal versions have the same digest, and behind a relay two learners' versions may
        # have the same number.
        return self._once((PolicyEncoding.DELTA, None if base is None else (base.version, base.digest)), make)

    def _once(self, key: Hashable, make: Callable[[], tuple[bytes, ...]]) -> tuple[bytes, ...]:
        with self._lock:
            once = self._made.setdefault(key, _Once())
        return once.get(make)

    def _cut(self, content: bytes, head: policy_pb2.PolicyChunk) -> tuple[bytes, ...]:
        """Splits bytes into messages, and copies them once. `head` has the fields that all chunks have in common."""
        return tuple(
            seal_joined(open_field(b"", _CHUNK, len(opened) + len(payload)), opened, payload)
            for opened, payload in self._chunks(content, head)
        )

    def _chunks(self, content: bytes, head: policy_pb2.PolicyChunk) -> Iterator[tuple[bytes, memoryview]]:
        """Yields each serialised chunk in two parts: the fields before the payload, and the payload.

        The result equals protobuf's, with the payload last, but protobuf would copy the payload three times.
        """
        head.version, head.total_bytes, head.digest = self.version, len(content), xxhash.xxh3_128_digest(content)
        head.progress = self.progress
        head.count = max(1, math.ceil(len(content) / MAX_CHUNK_BYTES))
        for index in range(head.count):
            head.index = index
            payload = memoryview(content)[index * MAX_CHUNK_BYTES : (index + 1) * MAX_CHUNK_BYTES]
            yield open_field(head.SerializeToString(), _PAYLOAD, len(payload)), payload


class _Once:
    """Messages that are made at their first use, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while the messages are made
        self._messages: tuple[bytes, ...] | None = None

    def get(self, make: Callable[[], tuple[bytes, ...]]) -> tuple[bytes, ...]:
        with self._lock:
            if self._messages is None:
                self._messages = make()
            return self._messages


def encode_policy(version: int, state: PolicyState, progress: float = 0.0) -> EncodedPolicy:
    """Serialises a version. Call this once for each version.

    Args:
        version: The policy's version, from 1.
        state: The policy's state_dict.
        progress: The progress of training, in [0, 1].

    Returns:
        The encoded version, for any number of subscribers.

    Raises:
        InvalidTensorError: An array has a dtype that is not on the whitelist.
    """
    arrays = {name: wire_array(array, what=f"policy {version}: {name}") for name, array in state.items()}
    return EncodedPolicy(version, safetensors.numpy.save(arrays), progress)
