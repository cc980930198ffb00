"""Keeps the policy versions that subscribers have, as bases for deltas."""

import threading
from collections.abc import Iterable
from typing import Self

from rollcast.services.limits.limits import MAX_KEPT_POLICIES, MAX_KEPT_POLICY_BYTES
from rollcast.services.policies.codec import EncodedPolicy, PolicyBase
from rollcast.services.policies.encodings import PolicyEncoding


class KeptPolicies:
    """The last sent versions of subscribers that accept deltas. Safe from any thread.

    Invariant: it keeps at most `max_policies` versions, and at most `max_bytes` besides the newest version. It first
    drops versions that no open subscription holds, then the oldest versions. A subscriber whose version was dropped
    gets an encoding without a base.

    Args:
        max_policies: The largest number of versions.
        max_bytes: The largest total size of the versions' files, in bytes.
    """

    def __init__(self, max_policies: int = MAX_KEPT_POLICIES, max_bytes: int = MAX_KEPT_POLICY_BYTES) -> None:
        self._max_policies, self._max_bytes = max_policies, max_bytes
        self._lock = threading.Lock()  # guards both
        self._kept: dict[int, PolicyBase] = {}
        self._holders: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, version: int, digest: bytes) -> PolicyBase | None:
        """Returns a kept version whose file has this digest; otherwise None."""
        with self._lock:
            kept = self._kept.get(version)
            return kept if kept is not None and kept.digest == digest else None

    def hold(self, policy: PolicyBase) -> None:
        """Keeps a version for a subscription, until the subscription releases it."""
        with self._lock:
            self._kept[policy.version] = policy
            self._holders[policy.version] = self._holders.get(policy.version, 0) + 1
            self._make_room()

    def release(self, version: int) -> None:
        """Notes that a subscription no longer holds a version. A reconnect may need it, so it stays for now."""
        with self._lock:
            self._holders[version] -= 1
            if not self._holders[version]:
                del self._holders[version]

    def _make_room(self) -> None:
        """Drops versions while there are too many. Called with the lock held."""
        while len(self._kept) > 1 and (
            len(self._kept) > self._max_policies
            or sum(len(kept.file) for kept in self._kept.values()) > self._max_bytes
        ):
            newest = max(self._kept)
            others = [version for version in self._kept if version != newest]
            del self._kept[min(others, key=lambda version: (version in self._holders, version))]


class PolicyEncoder:
    """Chooses the encoding of each version for one subscription. Only the subscription's thread uses it.

    Use it as a context manager.

    Args:
        kept: The versions that all subscriptions share.
        encodings: The encodings that the subscriber accepts, besides the whole file.
        version: The version that the subscriber has; 0: none.
        digest: The digest of that version's file; empty: the subscriber has no file.
    """

    def __init__(self, kept: KeptPolicies, encodings: Iterable[PolicyEncoding], version: int, digest: bytes) -> None:
        self._kept = kept
        self._encodings = frozenset(encodings)
        self._version, self._digest = version, digest
        self._holds = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._release()

    def chunks(self, encoded: EncodedPolicy) -> tuple[bytes, ...]:
        """Returns the messages of a version, in the smallest encoding that the subscriber accepts."""
        if PolicyEncoding.DELTA in self._encodings:
            base = self._kept.find(self._version, self._digest)
            # Before the old version is released, because the delta needs it.
            self._kept.hold(encoded.as_base())
            self._release()
            self._version, self._digest, self._holds = encoded.version, encoded.digest, True
            return encoded.delta(base)
        if PolicyEncoding.BFLOAT16 in self._encodings:
            return encoded.bfloat16()
        return encoded.chunks

    def _release(self) -> None:
        if self._holds:
            self._kept.release(self._version)
            self._holds = False
