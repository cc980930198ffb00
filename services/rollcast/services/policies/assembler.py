"""Puts the chunks of a policy together again and checks their digest."""

import numpy as np
import safetensors
import safetensors.numpy
import xxhash

from rollcast.services.errors import InvalidTensorError, LimitExceededError
from rollcast.services.limits.limits import MAX_CHUNK_BYTES, MAX_POLICY_BYTES
from rollcast.services.policies.policies import PolicyState
from rollcast.v1 import policy_pb2


class PolicyAssembler:
    """Puts chunks together again. Used by one thread; after an error it starts over with the next version.

    Memory never exceeds what has been received, whatever a chunk's header claims.

    Args:
        max_policy_bytes: The largest policy to accept.
    """

    def __init__(self, max_policy_bytes: int = MAX_POLICY_BYTES) -> None:
        self._max_policy_bytes = max_policy_bytes
        self._first: policy_pb2.PolicyChunk | None = None
        self._payloads: list[bytes] = []
        self._digest = xxhash.xxh3_128()
        self._n_bytes = 0

    def add(self, chunk: policy_pb2.PolicyChunk) -> tuple[int, PolicyState] | None:
        """Takes the next chunk.

        Args:
            chunk: The chunk.

        Returns:
            Version and state_dict when this chunk completes them. The arrays are read-only or not, as safetensors made
            them; do not write to them.

        Raises:
            InvalidTensorError: A chunk out of order, a digest that is wrong, or bytes that are no safetensors file.
            LimitExceededError: The policy is above `max_policy_bytes`, or a payload above 1 MiB.
        """
        try:
            return self._add(chunk)
        except (InvalidTensorError, LimitExceededError):
            self._reset()
            raise

    def _add(self, chunk: policy_pb2.PolicyChunk) -> tuple[int, PolicyState] | None:
        payload = chunk.payload  # read once: upb copies the bytes at every read
        self._check(chunk, len(payload))
        if self._first is None:
            self._first = policy_pb2.PolicyChunk(
                version=chunk.version, count=chunk.count, total_bytes=chunk.total_bytes, digest=chunk.digest
            )
        self._payloads.append(payload)
        self._digest.update(payload)  # while the payload is in the cache
        self._n_bytes += len(payload)
        if len(self._payloads) < chunk.count:
            return None
        file, digest = b"".join(self._payloads), self._digest.digest()
        self._reset()
        if len(file) != chunk.total_bytes:
            raise InvalidTensorError(
                f"policy {chunk.version} has {len(file)} bytes; expected {chunk.total_bytes}, as its chunks say; "
                "get it again"
            )
        if digest != chunk.digest:
            raise InvalidTensorError(
                f"policy {chunk.version} has digest {digest.hex()}; expected {chunk.digest.hex()}, as its chunks "
                "say; get it again"
            )
        return chunk.version, _parse(file, chunk.version)

    def _check(self, chunk: policy_pb2.PolicyChunk, n_bytes: int) -> None:
        what = f"policy {chunk.version}, chunk {chunk.index} of {chunk.count}"
        if chunk.total_bytes > self._max_policy_bytes:
            raise LimitExceededError(
                f"policy {chunk.version} has {chunk.total_bytes} bytes; expected at most {self._max_policy_bytes}; "
                "raise max_policy_bytes or use a smaller network",
                limit="max_policy_bytes",
            )
        if n_bytes > MAX_CHUNK_BYTES or self._n_bytes + n_bytes > chunk.total_bytes:
            raise LimitExceededError(
                f"{what} has {n_bytes} bytes after {self._n_bytes}; expected at most {MAX_CHUNK_BYTES} a chunk and "
                f"{chunk.total_bytes} in all; get the policy again",
                limit="max_chunk_bytes" if n_bytes > MAX_CHUNK_BYTES else "",
            )
        # With empty chunks a sender could keep us waiting for ever, one header at a time.
        if not n_bytes or chunk.index != len(self._payloads) or not chunk.index < chunk.count <= chunk.total_bytes:
            raise InvalidTensorError(
                f"{what} came with {n_bytes} bytes; expected chunk {len(self._payloads)}, not empty; get the policy "
                "again"
            )
        first = self._first
        if first is not None and (first.version, first.count, first.total_bytes, first.digest) != (
            chunk.version,
            chunk.count,
            chunk.total_bytes,
            chunk.digest,
        ):
            raise InvalidTensorError(
                f"{what} came in the middle of policy {first.version} with {first.count} chunks; expected the rest of "
                "that policy; get the policy again"
            )

    def _reset(self) -> None:
        self._first, self._payloads, self._n_bytes = None, [], 0
        self._digest.reset()


def _parse(file: bytes, version: int) -> PolicyState:
    try:
        state: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = safetensors.numpy.load(file)
    # KeyError and TypeError come from a dtype that safetensors knows and numpy does not.
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InvalidTensorError(
            f"policy {version} is no safetensors file: {error}; expected one; see PolicyChunk"
        ) from error
    return state
