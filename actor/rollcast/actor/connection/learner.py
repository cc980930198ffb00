"""Connects an actor to its learner: rollouts go up, policies come down, and both survive reconnects."""

import logging
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
# Time for the stream to open, for an actor that fails right after it has joined.
_FAIL_TIMEOUT_S = 2.0


class LearnerConnection(Connection):
    """The connection of an actor to one learner, over every reconnect.

    The acting thread calls `join`, then `wait_for_credit`, `take_policy` and `send` in turn. Two threads of the
    connection keep the streams: one sends rollouts and reads acknowledgements, one reads policies.

    Invariant: every rollout given to `send` is either acknowledged or kept, in order, and sent again after a reconnect.
    Its arguments are those of `Connection`.
    """

    def __init__(self, address: str, offer: JoinOffer, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(address, offer, **options)
        self._outbox = Outbox()
        self._stalls = StallDetector()
        self._feed = PolicyFeed(
            self._changed, is_over=self._is_over, on_end=self._note_last_policy, encodings=self._encodings
        )
        self._activity: Callable[[], ActorActivity] | None = None

    def report_activity(self, activity: Callable[[], ActorActivity]) -> None:
        """Tells the learner how the actor spends its time, if the learner asks for it. Call it before `join`.

        Args:
            activity: Returns that; called from another thread, about once a second.
        """
        self._activity = activity

    @property
    def is_open(self) -> bool:
        """True while there is a stream, and the learner has answered on it."""
        with self._changed:
            return self._outbox.is_open

    def wait_for_credit(self, sequence: int, timeout_s: float) -> bool:
        """Waits until rollout `sequence` may be started: the learner asks for it, and a policy new enough has come.

        Returns:
            True if it may be started; False after `timeout_s`, or when training has ended.

        Raises:
            RollcastError: If the connection is lost for good.
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
        """Returns whether the learner asks for rollout `sequence`, which may still wait for a policy new enough."""
        with self._changed:
            return self._outbox.credit_sequence >= sequence

    @property
    def min_policy_version(self) -> int:
        """The oldest policy that the learner takes rollouts of now; 0: any."""
        with self._changed:
            return self._outbox.min_policy_version

    def take_policy(self) -> ReceivedPolicy | None:
        """Returns the learner's newest policy; None before the first."""
        with self._changed:
            return self._feed.newest

    def send(self, rollout: Rollout) -> None:
        """Keeps the rollout until it is acknowledged, and sends it. Returns at once."""
        with self._changed:
            self._stalls.broken()
            self._outbox.put(rollout)

    def fail(self, failure: ActorFailure) -> None:
        """Tells the learner why this actor ends; waits up to 2 s for the stream if the actor has just joined."""
        with self._changed:
            self._changed.wait_for(lambda: self._outbox.is_open or self._is_over(), _FAIL_TIMEOUT_S)
            self._outbox.fail(failure)

    def drain(self, timeout_s: float) -> int:
        """Waits until every rollout is acknowledged; returns how many are not, after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._outbox or self._error or self._ended, timeout_s)
            return len(self._outbox)

    def close(self) -> None:
        """Closes the streams and ends the threads. Idempotent."""
        self._ending.closing.set()
        with self._changed:
            uplink, client = self._outbox.uplink, self._client
            self._feed.cancel()
            self._changed.notify_all()
        if uplink is not None:
            uplink.close()
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive() and uplink is not None:
                uplink.cancel()
                thread.join(_CLOSE_TIMEOUT_S)
        self._threads.clear()
        if client is not None:
            client.close()

    def _note_last_policy(self) -> None:
        """Notes that training has ended, unless closing has ended the policies. Called with the lock held."""
        self._ended = self._ended or not self._ending.closing.is_set()

    def _loops(self) -> Mapping[str, Callable[[], None]]:
        return {"uplink": partial(self._keep_stream, self._stream_rollouts), "policies": self._feed.keep}

    def _follow(self, client: LearnerClient, agreement: JoinAgreement) -> None:
        self._feed.follow(client, agreement.actor_id, agreement.learner_nonce)

    def _acknowledged(self) -> int:
        return self._outbox.acknowledged

    def _reconnect_after_loss(self) -> None:
        """Asks a silent learner how far it is; ends the stream, to open another, if a message was lost."""
        with self._changed:
            client, uplink, acknowledged = self._client, self._outbox.uplink, self._outbox.acknowledged
            if client is None or uplink is None or not self._stalls.is_to_be_asked():
                return
            has_sent = bool(self._outbox)
        try:
            answer = client.join(self._joining.offer(acknowledged), timeout_s=ASK_TIMEOUT_S)
        except RollcastError as error:
            # The thread that keeps the stream meets the same error, and reconnects.
            logger.debug("the learner at %s does not say how far it is: %s", self._address, error)
            with self._changed:
                gives_up = self._outbox.uplink is uplink and self._stalls.is_in_vain()
            if gives_up:
                uplink.cancel(
                    NotReadyError(
                        f"the learner has stalled, and does not say what it has received: {error}; join again with "
                        "backoff"
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
            uplink.cancel(
                NotReadyError(f"{lost} was lost on its way; expected what was sent; join again and send it again")
            )

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
