"""Follows a learner's policies without joining it."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from rollcast.actor.connection.backoff import backoff_delays
from rollcast.actor.connection.reconnects import GOOD_CONNECTION_S
from rollcast.services.address import split_addresses
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.inference.inference import weights_digest
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.policies.policies import PolicyState
from rollcast.services.policies.subscription import PolicySubscription
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity

logger = logging.getLogger(__name__)

# Versions whose digests are kept: those that actors may still act with.
_N_DIGESTS: Final = 1024


class FollowedPolicy(NamedTuple):
    """A learner's newest policy.

    Attributes:
        version: The policy's version.
        state: The policy's arrays.
        digests: The digests of the weights of this version and of earlier versions, by version.
    """

    version: int
    state: PolicyState
    digests: Mapping[int, bytes]


class FollowedPolicies:
    """The newest policy of a learner, across reconnects. Thread-safe.

    Invariant: all digests belong to one run. A version that does not increase begins another run.

    Args:
        address: The learner's address, or several addresses.
        security: Certificates and token.
        encodings: The accepted encodings, besides whole files.
    """

    def __init__(
        self,
        address: str,
        security: ClientSecurity = PLAIN_CLIENT,
        encodings: Collection[PolicyEncoding] = (),
    ) -> None:
        self._addresses = itertools.cycle(split_addresses(address))
        self._security = security
        self._encodings = encodings
        self._closed = threading.Event()
        self._lock = threading.Lock()  # guards the subscription
        self._subscription: PolicySubscription | None = None
        self._digests: dict[int, bytes] = {}
        self._thread: threading.Thread | None = None

    def follow(self, on_policy: Callable[[FollowedPolicy], None]) -> None:
        """Starts to follow the learner; a second call has no effect. One thread at a time may call it.

        Args:
            on_policy: Called for each version, by the thread that reads policies.
        """
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._follow, args=(on_policy,), name="rollcast-inference-policies", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        with self._lock:
            self._closed.set()
            if self._subscription is not None:
                self._subscription.cancel()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, on_policy: Callable[[FollowedPolicy], None]) -> None:
        delays, said = backoff_delays(), ""
        while not self._closed.is_set():
            address, began = next(self._addresses), time.monotonic()
            error: RollcastError | None = None
            try:
                with LearnerClient(address, security=self._security) as client:
                    for version, state in self._subscribed(client):
                        on_policy(FollowedPolicy(version, state, self._noted(version, weights_digest(state))))
            except RollcastError as caught:
                error = caught
            # Not after each policy: a learner whose training has ended, or whose deltas cannot be decoded, sends one.
            if time.monotonic() - began >= GOOD_CONNECTION_S:
                delays, said = backoff_delays(), ""
            if error is not None and str(error) != said:
                said = str(error)
                logger.warning("central inference gets no policies from %s: %s; trying again", address, error)
            self._closed.wait(next(delays))

    def _subscribed(self, client: LearnerClient) -> Iterable[tuple[int, PolicyState]]:
        with self._lock:
            if self._closed.is_set():
                return ()
            self._subscription = client.subscribe_policy(assembler=PolicyAssembler(encodings=self._encodings))
            return self._subscription

    def _noted(self, version: int, digest: bytes) -> Mapping[int, bytes]:
        """Returns the digests of the run so far, a new mapping each time, because other threads read the old one."""
        if version <= max(self._digests, default=0) and self._digests.get(version) != digest:
            self._digests = {}
        # A learner that resumes from a checkpoint gives the later versions other weights.
        kept = [item for item in self._digests.items() if item[0] < version][1 - _N_DIGESTS :]
        self._digests = {**dict(kept), version: digest}
        return self._digests
