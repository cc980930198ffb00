"""Keeps the newest policy of a learner, across reconnects."""

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from rollcast.actor.connection.reconnects import Reconnects
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.policies.policies import PolicyState
from rollcast.services.policies.subscription import PolicySubscription

logger = logging.getLogger(__name__)


class ReceivedPolicy(NamedTuple):
    """A policy that a learner has published.

    Attributes:
        version: The policy's version.
        state: The policy's arrays.
        progress: The progress of training when the policy was published, in [0, 1].
    """

    version: int
    state: PolicyState
    progress: float


class PolicyFeed:
    """The newest policy that a learner has published.

    One thread calls `keep`. Any thread may call `take`. All other methods need the connection's lock.

    Invariant: `newest` is a policy of the learner that the actor joined last, or None. Versions of different learners
    cannot be compared, and a learner cannot use rollouts of another learner's policy.

    Args:
        changed: The connection's lock, notified after every policy and at the end.
        is_over: Returns whether the connection has ended. Called with the lock held.
        on_end: Called with the lock held, after the learner's last policy.
        encodings: The accepted encodings, besides whole files.
    """

    def __init__(
        self,
        changed: threading.Condition,
        *,
        is_over: Callable[[], bool],
        on_end: Callable[[], None],
        encodings: Collection[PolicyEncoding] = (),
    ) -> None:
        # Used by the thread that calls `keep`. The assembler keeps the last file across reconnects.
        self._assembler = PolicyAssembler(encodings=encodings)
        self._changed = changed
        self._is_over = is_over
        self._on_end = on_end
        self._client: LearnerClient | None = None
        self._actor_id = ""
        self._learner_nonce = 0
        self._subscription: PolicySubscription | None = None
        self._newest: ReceivedPolicy | None = None

    @property
    def newest(self) -> ReceivedPolicy | None:
        """The newest policy; None before the learner's first policy."""
        return self._newest

    def follow(self, client: LearnerClient, actor_id: str, learner_nonce: int) -> None:
        """Follows the learner that the actor has just joined, and drops the policy of another learner.

        Args:
            client: The client that joined.
            actor_id: The actor's name.
            learner_nonce: The nonce of the learner's process; 0: unknown, so it counts as another learner.
        """
        if not learner_nonce or learner_nonce != self._learner_nonce:
            self._newest = None
        self._client, self._actor_id, self._learner_nonce = client, actor_id, learner_nonce

    def take(self, client: LearnerClient, version: int, state: PolicyState, progress: float) -> None:
        """Keeps a policy from an answer, unless the policy is older than the newest policy or from an earlier client.

        Args:
            client: The client that received the policy.
            version: The policy's version.
            state: The policy's arrays.
            progress: The progress of training, in [0, 1].
        """
        with self._changed:
            if self._client is client and (self._newest is None or version > self._newest[0]):
                self._newest = ReceivedPolicy(version, state, progress)
                self._changed.notify_all()

    def cancel(self) -> None:
        """Ends the open stream, if any."""
        if self._subscription is not None:
            self._subscription.cancel()

    def keep(self) -> None:
        """Reads policies until the connection has ended, and subscribes again after every loss. Call `follow` first.

        Raises:
            RollcastError: The learner sent something other than a policy, or another attempt will not help.
        """
        reconnects = Reconnects()
        while True:
            opened, lost = time.monotonic(), None
            with self._changed:
                if self._is_over():
                    return
                client = self._client
                assert client is not None
                # After a reconnect, the learner sends only policies newer than this.
                after_version = 0 if self._newest is None else self._newest[0]
                subscription = self._subscription = client.subscribe_policy(
                    after_version, actor_id=self._actor_id, assembler=self._assembler
                )
            try:
                for version, state in subscription:
                    reconnects.progressed()
                    with self._changed:
                        if self._client is not client:
                            break
                    self.take(client, version, state, self._assembler.progress)
            except RollcastError as error:
                lost = error
                logger.debug("lost the policy stream: %s", error)
            else:
                with self._changed:
                    if self._client is client:
                        self._on_end()
                        self._changed.notify_all()
                        return
            delay_s = reconnects.delay_after(lost, lasted_s=time.monotonic() - opened)
            with self._changed:
                self._subscription = None
                self._await_other_client(client, delay_s)

    def _await_other_client(self, client: LearnerClient, timeout_s: float) -> None:
        """Waits for the backoff, or until the actor has joined a learner again. Called with the lock held."""
        self._changed.wait_for(lambda: self._client is not client or self._is_over(), timeout_s)
