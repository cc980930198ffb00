"""Connects an actor to its learner: sends rollouts and receives policies, across reconnects."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Unpack

from rollcast.actor.connection.base import Connection, ConnectionOptions
from rollcast.actor.connection.outbox import Outbox
from rollcast.actor.connection.policy_feed import PolicyFeed, ReceivedPolicy
from rollcast.actor.connection.reconnects import Reconnects
from rollcast.actor.connection.stall_detector import ASK_TIMEOUT_S, StallDetector
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import NotReadyError, RollcastError
from rollcast.services.joining.activity import ActorActivity, ActorFailure
from rollcast.services.joining.join import JoinAgreement, JoinOffer
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.streams.uplink import RolloutUplink

logger = logging.getLogger(__name__)

# Time for the learner to end a stream before the stream is cancelled.
_CLOSE_TIMEOUT_S = 1.0
# The same for a farewell on another stream. The learner checks about once per second for a stream that replaces the
# unread one.
_FAREWELL_TIMEOUT_S = 3.0
# Time for the stream to open, for an actor that fails right after it has joined.
_FAIL_TIMEOUT_S = 2.0


class LearnerConnection(Connection):
    """The connection of an actor to one learner, across reconnects.

    The acting thread calls `join`, then `wait_for_credit`, `take_policy` and `send` in turn. The connection has two
    threads: one sends rollouts and reads acknowledgements, the other reads policies.

    Invariant: every rollout given to `send` is either acknowledged or kept, in order, and sent again after a reconnect.
    For the arguments, see `Connection`.
    """

    def __init__(self, address: str, offer: JoinOffer, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(address, offer, **options)
        self._outbox = Outbox()
        self._stalls = StallDetector()
        self._feed = PolicyFeed(
            self._changed, is_over=self._is_over, on_end=self._note_last_policy, encodings=self._encodings
        )
        self._activity: Callable[[], ActorActivity] | None = None
        self._failure: ActorFailure | None = None

    def report_activity(self, activity: Callable[[], ActorActivity]) -> None:
        """Sends the actor's activity to the learner, if the learner requests it. Call this before `join`.

        Args:
            activity: Returns the activity. Another thread calls it, about once per second.
        """
        self._activity = activity

    @property
    def is_open(self) -> bool:
        """True if a stream is open and the learner has answered on it."""
        with self._changed:
            return self._outbox.is_open

    def wait_for_credit(self, sequence: int, timeout_s: float) -> bool:
        """Waits until rollout `sequence` may start: it has credit, and a recent enough policy has arrived.

        Returns:
            True if the rollout may start; False after `timeout_s`, or when training has ended.

        Raises:
            RollcastError: The connection cannot be restored.
        """

        def may_start() -> bool:
            return (
                self._outbox.credit_sequence >= sequence
                and (newest := self._feed.newest) is not None
                and newest[0] >= self._outbox.min_policy_version
            )

        with self._changed:
            self._changed.wait_for(lambda: self._error or self._ended or may_start(), timeout_s)
            if self._error:
                raise self._error
            if self._ended or may_start():
                return not self._ended
        self._reconnect_after_loss()
        return False

    def has_credit(self, sequence: int) -> bool:
        """Returns whether rollout `sequence` has credit. The rollout may still have to wait for a policy."""
        with self._changed:
            return self._outbox.credit_sequence >= sequence

    @property
    def min_policy_version(self) -> int:
        """The oldest policy version whose rollouts the learner accepts now; 0: any version."""
        with self._changed:
            return self._outbox.min_policy_version

    def take_policy(self) -> ReceivedPolicy | None:
        """Returns the learner's newest policy; None before the first policy."""
        with self._changed:
            return self._feed.newest

    def send(self, rollout: Rollout) -> None:
        """Sends the rollout, and keeps it until the learner has acknowledged it. Returns at once."""
        with self._changed:
            self._stalls.broken()
            self._outbox.put(rollout)

    def fail(self, failure: ActorFailure) -> None:
        """Reports to the learner why this actor ends. Waits up to 2 s for an open stream."""
        with self._changed:
            self._changed.wait_for(lambda: self._outbox.is_open or self._is_over(), _FAIL_TIMEOUT_S)
            self._outbox.fail(failure)
            self._failure = failure

    def drain(self, timeout_s: float) -> int:
        """Waits at most `timeout_s` for all acknowledgements. Returns the number of missing acknowledgements."""
        with self._changed:
            self._changed.wait_for(lambda: not self._outbox or self._error or self._ended, timeout_s)
            return len(self._outbox)

    def close(self) -> None:
        """Closes the streams and ends the threads. Idempotent."""
        self._ending.closing.set()
        with self._changed:
            uplink, client = self._outbox.uplink, self._client
            # The learner does not read while a rollout waits for room in its queue.
            is_unread = self._outbox.is_open and bool(self._outbox) and not self._error and not self._ended
            self._feed.cancel()
            self._changed.notify_all()
        if uplink is not None:
            uplink.close()
        if client is not None and is_unread:
            self._leave(client)
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive() and uplink is not None:
                uplink.cancel()
                thread.join(_CLOSE_TIMEOUT_S)
        self._threads.clear()
        if client is not None:
            client.close()

    def _leave(self, client: LearnerClient) -> None:
        """Reports the actor's end on another stream, which replaces the unread one."""
        try:
            farewell = client.open_rollout_stream(self.agreement.actor_id, self.agreement.incarnation)
        except RollcastError as error:
            logger.debug("the learner at %s did not receive the end of this actor: %s", self._address, error)
            return
        if self._failure is not None:
            farewell.fail(self._failure)
        farewell.close()
        thread = threading.Thread(target=self._hear_out, args=(farewell,), name="rollcast-goodbye", daemon=True)
        thread.start()
        thread.join(_FAREWELL_TIMEOUT_S)
        farewell.cancel()
        thread.join(_CLOSE_TIMEOUT_S)

    def _hear_out(self, farewell: RolloutUplink) -> None:
        try:
            for _ in farewell.responses():
                pass
        except RollcastError as error:
            logger.debug("the learner at %s may not have received the end of this actor: %s", self._address, error)

    def _note_last_policy(self) -> None:
        """Notes that training has ended, unless `close` has ended the policy stream. Called with the lock held."""
        self._ended = self._ended or not self._ending.closing.is_set()

    def _loops(self) -> Mapping[str, Callable[[], None]]:
        return {"uplink": partial(self._keep_stream, self._stream_rollouts), "policies": self._feed.keep}

    def _follow(self, client: LearnerClient, agreement: JoinAgreement) -> None:
        self._feed.follow(client, agreement.actor_id, agreement.learner_nonce)

    def _acknowledged(self) -> int:
        return self._outbox.acknowledged

    def _reconnect_after_loss(self) -> None:
        """Asks a silent learner for its progress. If a message was lost, ends the stream, to open another."""
        with self._changed:
            client, uplink, acknowledged = self._client, self._outbox.uplink, self._outbox.acknowledged
            if client is None or uplink is None or not self._stalls.is_to_be_asked():
                return
            has_sent = bool(self._outbox)
        try:
            answer = client.join(self._joining.offer(acknowledged), timeout_s=ASK_TIMEOUT_S)
        except RollcastError as error:
            # The thread of the stream gets the same error, and reconnects.
            logger.debug("the learner at %s does not report its progress: %s", self._address, error)
            with self._changed:
                gives_up = self._outbox.uplink is uplink and self._stalls.is_in_vain()
            if gives_up:
                uplink.cancel(
                    NotReadyError(
                        f"the learner has stalled, and does not report its progress: {error}; join again with backoff"
                    )
                )
            return
        with self._changed:
            if self._outbox.uplink is not uplink or self._outbox.acknowledged != acknowledged:
                return
            newest = self._feed.newest
            lost = self._stalls.find_loss(
                answer,
                is_open=self._outbox.is_open,
                acknowledged=acknowledged,
                has_sent=has_sent,
                policy_version=newest[0] if newest else 0,
            )
        if lost:
            uplink.cancel(NotReadyError(f"{lost} was lost; expected all messages; join again and send it again"))

    def _stream_rollouts(self, reconnects: Reconnects) -> None:
        """Opens a rollout stream and reads the learner's answers until it ends."""
        agreement = self.agreement
        with self._changed:
            client = self._client
            assert client is not None
            newest = self._feed.newest
        uplink = client.open_rollout_stream(
            agreement.actor_id,
            agreement.incarnation,
            activity=self._activity,
            activity_interval_s=agreement.activity_interval_s,
            report_with_rollout=agreement.report_with_rollout,
            # Policies come with answers as whole files only.
            on_policy=None if self._encodings else partial(self._feed.take, client),
            policy_version=newest[0] if newest else 0,
        )
        with self._changed:
            self._outbox.attach(uplink)
            self._stalls.opened()
        try:
            self._read_answers(uplink, reconnects)
        finally:
            with self._changed:
                self._outbox.attach(None)

    def _read_answers(self, uplink: RolloutUplink, reconnects: Reconnects) -> None:
        for progress in uplink.responses():
            with self._changed:
                self._stalls.broken()
                if self._outbox.take(progress):
                    self._stalls.progressed()
                    reconnects.progressed()
                self._ended = self._ended or progress.end_of_training
                self._changed.notify_all()
                if self._ended:
                    uplink.close()
                    return
        if not self._ending.closing.is_set():
            raise NotReadyError("the learner closed the rollout stream")
