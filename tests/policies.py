"""Policies whose messages are what a test wants."""

import json

import safetensors.numpy
import xxhash

from rollcast.services.policies.codec import EncodedPolicy, PolicyBase
from rollcast.services.wire.seal import seal
from rollcast.v1 import policy_pb2


def message_of(payload: bytes, **fields: object) -> bytes:
    """Returns a policy in one chunk, as a learner sends it, but for the fields that are given."""
    whole = {"count": 1, "total_bytes": len(payload), "digest": xxhash.xxh3_128_digest(payload), "payload": payload}
    chunk = policy_pb2.PolicyChunk(**{**whole, **fields})
    return seal(policy_pb2.SubscribePolicyResponse(chunk=chunk).SerializeToString())


class SpoiltPolicy(EncodedPolicy):
    """A version of which a learner sends something else.

    Args:
        like: The version.
        whole: The messages of the whole file; None: as they are.
        delta: The messages of a difference to a base, by its digest, b"" without one.
        chunk: The chunk in an answer; None: as it is.
    """

    def __init__(
        self,
        like: EncodedPolicy,
        *,
        whole: tuple[bytes, ...] | None = None,
        delta: dict[bytes, tuple[bytes, ...]] | None = None,
        chunk: bytes | None = None,
    ) -> None:
        super().__init__(like.version, like.file)
        self._whole, self._deltas, self._chunk = whole, delta or {}, chunk

    @property
    def chunks(self) -> tuple[bytes, ...]:
        return super().chunks if self._whole is None else self._whole

    @property
    def chunk(self) -> bytes:
        return super().chunk if self._chunk is None else self._chunk

    def delta(self, base: PolicyBase | None) -> tuple[bytes, ...]:
        digest = b"" if base is None else base.digest
        return self._deltas[digest] if digest in self._deltas else super().delta(base)


class LostPolicy(EncodedPolicy):
    """A version whose messages are lost the first time."""

    was_sent = False

    @property
    def chunks(self) -> tuple[bytes, ...]:
        is_lost, self.was_sent = not self.was_sent, True
        return () if is_lost else super().chunks


def without_digest(content: bytes) -> bytes:
    """Returns a policy file as versions before the digest wrote it."""
    n_header = int.from_bytes(content[:8], "little")
    ((key, described),) = json.loads(content[8 : 8 + n_header])["__metadata__"].items()
    old = {name: value for name, value in json.loads(described).items() if name != "xxh3_128"}
    return safetensors.numpy.save(safetensors.numpy.load(content), {key: json.dumps(old)})
