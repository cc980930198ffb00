"""Keeps the versions that subscribers hold, so that a later one can be sent as the difference to them."""

import threading
from collections.abc import Iterable
from typing import Self

from rollcast.services.limits.limits import MAX_KEPT_POLICIES, MAX_KEPT_POLICY_BYTES
from rollcast.services.policies.codec import EncodedPolicy, PolicyBase
from rollcast.services.policies.encodings import PolicyEncoding


class KeptPolicies:
    """The versions that were sent last to subscribers which take deltas. Any thread may call.

    Invariant: at most `max_policies`, and beyond the newest one at most `max_bytes`. Versions that no open subscription
    holds are dropped first, then the oldest. A subscriber whose version is gone gets an encoding without a base.

    Args:
        max_policies: The number of versions.
        max_bytes: The bytes of their files.
    """

    def __init__(self, max_policies: int = MAX_KEPT_POLICIES, max_bytes: int = MAX_KEPT_POLICY_BYTES) -> None:
        self._max_policies, self._max_bytes = max_policies, max_bytes
        self._lock = threading.Lock()  # guards both
        self._kept: dict[int, PolicyBase] = {}
        self._holders: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, version: int, digest: bytes) -> PolicyBase | None:
        """Returns a version, if it is kept and its file has the digest."""
        with self._lock:
            kept = self._kept.get(version)
            return kept if kept is not None and kept.digest == digest else None

    def hold(self, policy: PolicyBase) -> None:
        """Keeps a version that a subscription holds from now on."""
        with self._lock:
            self._kept[policy.version] = policy
            self._holders[policy.version] = self._holders.get(policy.version, 0) + 1
            self._make_room()

    def release(self, version: int) -> None:
        """Notes that a subscription does not hold a version any more; it may come back for it soon."""
        with self._lock:
            self._holders[version] -= 1
            if not self._holders[version]:
                del self._holders[version]

    def _make_room(self) -> None:
        """Forgets versions while there are too many. Called with the lock held."""
        while len(self._kept) > 1 and (
            len(self._kept) > self._max_policies
            or sum(len(kept.file) for kept in self._kept.values()) > self._max_bytes
        ):
            newest = max(self._kept)
            others = [version for version in self._kept if version != newest]
            del self._kept[min(others, key=lambda version: (version in self._holders, version))]


class PolicyEncoder:
    """Chooses the encoding of each version for one subscription. Used by the subscription's thread.

    Use it as a context manager.

    Args:
        kept: The versions that all subscriptions share.
        encodings: What the subscriber takes, besides the whole file.
        version: The version that the subscriber has; 0: none.
        digest: The digest of its file; empty: it has no file.
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
        """Returns the messages of a version, in the smallest encoding that the subscriber takes."""
        if PolicyEncoding.DELTA in self._encodings:
            base = self._kept.find(self._version, self._digest)
            # Before the old one is released: it is needed until the delta is made.
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
