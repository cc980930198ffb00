"""Assembles the chunks of a policy, checks their digest, and decodes them."""

from collections.abc import Collection

import numpy as np
import safetensors
import safetensors.numpy
import xxhash

from rollcast.services.errors import InvalidTensorError, LimitExceededError
from rollcast.services.limits.limits import MAX_CHUNK_BYTES, MAX_POLICY_BYTES
from rollcast.services.policies.bfloat16 import read_narrow_file
from rollcast.services.policies.delta import decode_delta
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.policies.policies import PolicyState
from rollcast.v1 import policy_pb2


class PolicyAssembler:
    """Assembles policies from chunks. Only one thread may use it. After an error, it continues with the next version.

    Chunks never take more memory than the received bytes, regardless of the size in a chunk's header. A decoded delta
    takes the size of its base version, or without a base a bounded multiple of the delta's bytes.

    Attributes:
        encodings: The accepted encodings, besides the whole file.
        progress: The progress of training in the last version, in [0, 1]; 0 before the first.

    Args:
        max_policy_bytes: The largest policy to accept.
        encodings: The encodings to accept, besides the whole file.
        keeps_file: Whether to keep the last whole file. `PolicyEncoding.DELTA` implies this.
    """

    def __init__(
        self,
        max_policy_bytes: int = MAX_POLICY_BYTES,
        encodings: Collection[PolicyEncoding] = (),
        *,
        keeps_file: bool = False,
    ) -> None:
        self.encodings = frozenset(encodings)
        self.progress = 0.0
        self._keeps_file = keeps_file or PolicyEncoding.DELTA in self.encodings
        self._max_policy_bytes = max_policy_bytes
        self._accepted = {encoding.value for encoding in self.encodings | {PolicyEncoding.FULL}}
        self._first: policy_pb2.PolicyChunk | None = None
        self._payloads: list[bytes] = []
        self._digest = xxhash.xxh3_128()
        self._n_bytes = 0
        self._base: tuple[int, bytes] | None = None

    @property
    def file(self) -> bytes:
        """The last whole file, as the learner encoded it, if files are kept."""
        assert self._base is not None, "no policy has arrived, or files are not kept"
        return self._base[1]

    def base_digest(self, version: int) -> bytes:
        """Returns the digest of a version's file, if it is kept for deltas; otherwise empty bytes."""
        if self._base is None or self._base[0] != version:
            return b""
        return xxhash.xxh3_128_digest(self._base[1])

    def begin(self) -> None:
        """Drops the chunks of an unfinished version, because a new stream begins with a first chunk."""
        self._reset()

    def forget_base(self) -> None:
        """Drops the last file and the unfinished chunks. The next version must therefore not need a base."""
        self._base = None
        self._reset()

    def add(self, chunk: policy_pb2.PolicyChunk) -> tuple[int, PolicyState] | None:
        """Takes the next chunk.

        Args:
            chunk: The chunk.

        Returns:
            The version and the state_dict if this chunk completes the policy, otherwise None. Do not write to the
            arrays, because some may be read-only.

        Raises:
            InvalidTensorError: A chunk is out of order, an encoding is not accepted, or a digest is wrong. Or a delta
                is damaged or has an unknown base, or the bytes are not a safetensors file.
            LimitExceededError: The policy exceeds `max_policy_bytes`, a payload exceeds 1 MiB, or a delta without a
                base expands too much.
        """
        try:
            return self._add(chunk)
        except (InvalidTensorError, LimitExceededError):
            self._reset()
            raise

    def add_whole(self, chunk: policy_pb2.PolicyChunk) -> tuple[int, PolicyState]:
        """Takes a policy that arrived in one chunk; see `add`.

        Raises:
            InvalidTensorError: The file is damaged, or contains only a part of a policy.
            LimitExceededError: The policy exceeds a limit.
        """
        self.begin()
        policy = self.add(chunk)
        if policy is None:
            raise InvalidTensorError(
                f"policy {chunk.version} arrived with an answer, in one of {chunk.count} chunks; expected all of it in "
                "one; check that it is a rollcast learner"
            )
        return policy

    def _add(self, chunk: policy_pb2.PolicyChunk) -> tuple[int, PolicyState] | None:
        payload = chunk.payload  # read once: upb copies the bytes at every read
        self._check(chunk, len(payload))
        if self._first is None:
            self._first = policy_pb2.PolicyChunk(
                version=chunk.version,
                count=chunk.count,
                total_bytes=chunk.total_bytes,
                digest=chunk.digest,
                encoding=chunk.encoding,
                base_version=chunk.base_version,
                file_bytes=chunk.file_bytes,
                file_digest=chunk.file_digest,
                progress=chunk.progress,
            )
        self._payloads.append(payload)
        self._digest.update(payload)  # while the payload is in the cache
        self._n_bytes += len(payload)
        if len(self._payloads) < chunk.count:
            return None
        content, digest = b"".join(self._payloads), self._digest.digest()
        self._reset()
        if len(content) != chunk.total_bytes:
            raise InvalidTensorError(
                f"policy {chunk.version} has {len(content)} bytes; expected {chunk.total_bytes}, the value in its "
                "chunks; get it again"
            )
        if digest != chunk.digest:
            raise InvalidTensorError(
                f"policy {chunk.version} has digest {digest.hex()}; expected {chunk.digest.hex()}, the value in "
                "its chunks; get it again"
            )
        if chunk.encoding == policy_pb2.POLICY_ENCODING_DELTA:
            content = self._decode(chunk, content)
        state = _parse(content, chunk)
        if self._keeps_file:
            if chunk.encoding == policy_pb2.POLICY_ENCODING_BFLOAT16:
                content = safetensors.numpy.save(dict(state))
            self._base = chunk.version, content
        self.progress = chunk.progress
        return chunk.version, state

    def _decode(self, chunk: policy_pb2.PolicyChunk, delta: bytes) -> bytes:
        """Returns the file of a version that arrived as a delta."""
        base = None
        if chunk.base_version:
            if self._base is None or self._base[0] != chunk.base_version:
                held = "no version" if self._base is None else f"version {self._base[0]}"
                raise InvalidTensorError(
                    f"policy {chunk.version} is a difference to version {chunk.base_version}; expected one to {held}, "
                    "which is kept here; subscribe again"
                )
            base = self._base[1]
        file = decode_delta(delta, base, n_bytes=chunk.file_bytes, what=f"policy {chunk.version}")
        digest = xxhash.xxh3_128_digest(file)
        if digest != chunk.file_digest:
            raise InvalidTensorError(
                f"policy {chunk.version} has digest {digest.hex()} after decoding; expected "
                f"{chunk.file_digest.hex()}, the value in its chunks; subscribe again"
            )
        return file

    def _check(self, chunk: policy_pb2.PolicyChunk, n_bytes: int) -> None:
        what = f"policy {chunk.version}, chunk {chunk.index} of {chunk.count}"
        if chunk.encoding not in self._accepted:
            raise InvalidTensorError(
                f"{what} has encoding {chunk.encoding}; expected one of {sorted(self._accepted)}, the accepted ones; "
                "install the same rollcast on both sides"
            )
        if not 0.0 <= chunk.progress <= 1.0:
            raise InvalidTensorError(
                f"{what} has progress {chunk.progress}; expected a number in [0, 1]; install the same rollcast on both "
                "sides"
            )
        largest = max(chunk.total_bytes, chunk.file_bytes)
        if largest > self._max_policy_bytes:
            raise LimitExceededError(
                f"policy {chunk.version} has {largest} bytes; expected at most {self._max_policy_bytes}; "
                "raise max_policy_bytes or use a smaller network",
                limit="max_policy_bytes",
            )
        if n_bytes > MAX_CHUNK_BYTES or self._n_bytes + n_bytes > chunk.total_bytes:
            raise LimitExceededError(
                f"{what} has {n_bytes} bytes, and the chunks before it have {self._n_bytes}; expected at most "
                f"{MAX_CHUNK_BYTES} a chunk and "
                f"{chunk.total_bytes} in all; get the policy again",
                limit="max_chunk_bytes" if n_bytes > MAX_CHUNK_BYTES else "",
            )
        # With empty chunks, a sender could keep this subscriber waiting for ever.
        if not n_bytes or chunk.index != len(self._payloads) or not chunk.index < chunk.count <= chunk.total_bytes:
            raise InvalidTensorError(
                f"{what} has {n_bytes} bytes; expected chunk {len(self._payloads)}, not empty; get the policy again"
            )
        first = self._first
        if first is not None and _common(first) != _common(chunk):
            raise InvalidTensorError(
                f"{what} arrived in the middle of policy {first.version} with {first.count} chunks; expected the rest "
                "of that policy; get the policy again"
            )

    def _reset(self) -> None:
        self._first, self._payloads, self._n_bytes = None, [], 0
        self._digest.reset()


def _common(chunk: policy_pb2.PolicyChunk) -> tuple[object, ...]:
    """Returns the fields that all chunks of a version have in common."""
    return (
        *(chunk.version, chunk.count, chunk.total_bytes, chunk.digest),
        *(chunk.encoding, chunk.base_version, chunk.file_bytes, chunk.file_digest, chunk.progress),
    )


def _parse(file: bytes, chunk: policy_pb2.PolicyChunk) -> PolicyState:
    try:
        if chunk.encoding == policy_pb2.POLICY_ENCODING_BFLOAT16:
            return read_narrow_file(file)
        state: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = safetensors.numpy.load(file)
    # KeyError and TypeError come from a dtype that safetensors knows and numpy does not.
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InvalidTensorError(
            f"policy {chunk.version} is not a safetensors file: {error}; expected one; see PolicyChunk"
        ) from error
    return state
