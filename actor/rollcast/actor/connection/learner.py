"""An actor's connection to its learner: it joins, streams rollouts up, takes policies down, and survives reconnects."""

import contextlib
import dataclasses
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rollcast.actor.connection.policy_feed import PolicyFeed
from rollcast.actor.connection.reconnects import Reconnects
from rollcast.actor.connection.silence import Silence
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import (
    ConfigurationError,
    LearnerUnreachableError,
    NotReadyError,
    ProtocolMismatchError,
    RollcastError,
    TrainingEndedError,
)
from rollcast.services.policies.policies import PolicyState
from rollcast.services.rollouts.join import JoinAgreement, JoinOffer
from rollcast.services.rollouts.rollouts import ActorFailure, Rollout
from rollcast.services.rollouts.uplink import RolloutUplink
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity
from rollcast.services.spaces.spaces import leaf_order

logger = logging.getLogger(__name__)

# How long a silent learner may take to say how far it is: the thread that asks is the one that is told to stop.
_ASK_TIMEOUT_S = 2.0
# How long the learner may take to see a stream out before it is cancelled.
_CLOSE_TIMEOUT_S = 1.0
# How long an actor that fails right after it has joined waits for the stream on which it says so.
_FAIL_TIMEOUT_S = 2.0


class LearnerConnection:
    """Joins a learner and keeps the two streams open, whatever happens to them.

    The acting thread calls `join`, then `wait_for_credit`, `take_policy` and `send` in turn. Two threads of the
    connection's own keep the streams: one sends rollouts and reads acknowledgements, one reads policies.

    Invariant: every rollout given to `send` is either acknowledged or kept, in order, and sent again after a reconnect.

    Args:
        address: The learner, `host:port` or `unix:/path`.
        offer: Who wants to act.
        security: Certificates and token; their files are read again at every reconnect.
        connect_timeout_s: How long the first join may take, in seconds.
        reconnect_timeout_s: How long a lost learner is waited for, in seconds.
        stop: Ends every wait for the learner.
        on_attempt: Called by the thread that calls `join`, before each attempt.
    """

    def __init__(
        self,
        address: str,
        offer: JoinOffer,
        *,
        security: ClientSecurity = PLAIN_CLIENT,
        connect_timeout_s: float = 60.0,
        reconnect_timeout_s: float = 600.0,
        stop: threading.Event | None = None,
        on_attempt: Callable[[], None] = lambda: None,
    ) -> None:
        self._address = address
        self._offer = offer
        self._security = security
        self._connect_timeout_s = connect_timeout_s
        self._reconnect_timeout_s = reconnect_timeout_s
        self._on_attempt = on_attempt
        self._stop = stop or threading.Event()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        # guards everything below
        self._changed = threading.Condition()
        self._client: LearnerClient | None = None
        self._agreement: JoinAgreement | None = None
        # the stream that is open; and the same from its first answer on
        self._stream: RolloutUplink | None = None
        self._uplink: RolloutUplink | None = None
        self._unacknowledged: deque[Rollout] = deque()
        self._acknowledged = 0
        self._credit_sequence = 0
        self._min_policy_version = 0
        self._silence = Silence()
        self._ended = False
        self._error: RollcastError | None = None
        self._feed = PolicyFeed(self._changed, is_over=self._is_over, on_end=self._note_last_policy)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        """True once the learner has said that training has ended."""
        with self._changed:
            return self._ended

    def join(self) -> JoinAgreement:
        """Joins, opens the streams and returns what was agreed.

        Raises:
            LearnerUnreachableError: Nobody answered within `connect_timeout_s`.
            TrainingEndedError: Training has ended; so says `ended` from now on.
            RollcastError: The learner refused; trying again will not help.
        """
        try:
            agreement = self._join_with_backoff(self._connect_timeout_s, self._on_attempt)
        except TrainingEndedError:
            self._end()
            raise
        if agreement is None:
            raise LearnerUnreachableError(f"closed while joining the learner at {self._address}")
        for name, target in (("uplink", self._keep_uplink), ("policies", self._feed.keep)):
            thread = threading.Thread(target=self._guard, args=(target,), name=f"rollcast-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return agreement

    def wait_for_credit(self, sequence: int, timeout_s: float) -> bool:
        """Waits until the rollout `sequence` may be started: it is credited, and a policy new enough is there.

        Returns:
            True if it may; False if `timeout_s` went by or training has ended.

        Raises:
            RollcastError: The connection is lost for good.
        """

        def may_start() -> bool:
            return (
                self._credit_sequence >= sequence
                and (newest := self._feed.newest) is not None
                and newest[0] >= self._min_policy_version
            )

        with self._changed:
            self._changed.wait_for(lambda: self._error or self._ended or may_start(), timeout_s)
            if self._error:
                raise self._error
            if self._ended or may_start():
                return not self._ended
        self._doubt_silence()
        return False

    def take_policy(self) -> tuple[int, PolicyState] | None:
        """Returns the learner's newest policy, `(version, state)`; None before the first."""
        with self._changed:
            return self._feed.newest

    def send(self, rollout: Rollout) -> None:
        """Keeps the rollout until it is acknowledged, and sends it. Returns at once."""
        with self._changed:
            self._unacknowledged.append(rollout)
            self._silence.broken()
            uplink = self._uplink
            if uplink is not None:
                # a stream that has just ended takes no more: the next one sends what is unacknowledged
                with contextlib.suppress(NotReadyError):
                    uplink.send(rollout)

    def fail(self, failure: ActorFailure) -> None:
        """Tells the learner why this actor ends, if the stream is open, or opens in a moment: it has just joined."""
        with self._changed:
            self._changed.wait_for(lambda: self._uplink is not None or self._is_over(), _FAIL_TIMEOUT_S)
            if self._uplink is not None:
                self._uplink.fail(failure)

    def drain(self, timeout_s: float) -> int:
        """Waits until everything sent is acknowledged; returns how many rollouts are not, after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unacknowledged or self._error or self._ended, timeout_s)
            return len(self._unacknowledged)

    def close(self) -> None:
        """Closes the streams and ends the threads. Idempotent."""
        self._closing.set()
        with self._changed:
            uplink, client = self._uplink, self._client
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

    def _guard(self, keep: Callable[[], None]) -> None:
        """Runs a thread's loop; whatever ends it reaches the acting thread."""
        try:
            keep()
        except RollcastError as error:
            self._give_up(error)
        except Exception as error:
            logger.exception("the connection to %s failed", self._address)
            self._give_up(RollcastError(f"the connection to {self._address} failed: {error!r}"))
            raise

    def _is_over(self) -> bool:
        """Whether nothing is to be had from the learner any more. Called with the lock held."""
        return self._ended or self._error is not None or self._closing.is_set() or self._stop.is_set()

    def _note_last_policy(self) -> None:
        """Training has ended, unless this is the end of our own closing. Called with the lock held."""
        self._ended = self._ended or not self._closing.is_set()

    def _end(self) -> None:
        """Notes that training has ended."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _give_up(self, error: RollcastError) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _pause(self, delay_s: float) -> None:
        """Waits out a backoff; ends early when the connection is closed or the actor stopped."""
        deadline = time.monotonic() + delay_s
        while not self._stop.is_set() and (left_s := deadline - time.monotonic()) > 0:
            if self._closing.wait(min(left_s, 0.2)):
                return

    def _join_with_backoff(
        self, timeout_s: float, on_attempt: Callable[[], None] = lambda: None
    ) -> JoinAgreement | None:
        """Joins, trying again while that can help; None when closed meanwhile."""
        deadline = time.monotonic() + timeout_s
        reconnects = Reconnects()
        for attempt in itertools.count(1):
            if self._closing.is_set() or self._stop.is_set():
                return None
            on_attempt()
            client = None
            try:
                client = self._new_client()
                agreement = client.join(self._current_offer())
            except RollcastError as error:
                if client is not None:
                    client.close()
                delay_s = reconnects.delay_after(error)
                if time.monotonic() + delay_s > deadline:
                    raise LearnerUnreachableError(
                        f"no learner at {self._address} for {timeout_s:.0f} s ({attempt} attempts): {error}"
                    ) from error
                if attempt in {3, 10, 30, 100}:
                    logger.warning("waiting for the learner at %s: %s", self._address, error)
                self._pause(delay_s)
            except BaseException:
                if client is not None:
                    client.close()
                raise
            else:
                self._adopt(client, agreement)
                return agreement
        raise AssertionError("counting never ends")

    def _doubt_silence(self) -> None:
        """Opens the streams anew where a learner that is silent says what tells that something was lost on its way."""
        with self._changed:
            client, stream, acknowledged = self._client, self._stream, self._acknowledged
            if client is None or stream is None or not self._silence.is_to_be_asked():
                return
            offer, has_sent = self._current_offer(), bool(self._unacknowledged)
        try:
            answer = client.join(offer, timeout_s=_ASK_TIMEOUT_S)
        except RollcastError as error:
            # whoever keeps the stream finds out, too, and waits
            logger.debug("the learner at %s does not say how far it is: %s", self._address, error)
            return
        with self._changed:
            if self._stream is not stream or self._acknowledged != acknowledged:
                return
            newest = self._feed.newest
            lost = self._silence.find_loss(
                answer,
                is_open=self._uplink is not None,
                acknowledged=acknowledged,
                has_sent=has_sent,
                policy_version=newest[0] if newest else 0,
            )
        if lost:
            stream.cancel(
                NotReadyError(f"{lost} was lost on its way; expected what was sent; join again and send it again")
            )

    def _new_client(self) -> LearnerClient:
        try:
            return LearnerClient(self._address, security=self._security)
        except ConfigurationError as error:
            if self._agreement is None:
                raise
            # they were right once: somebody is replacing them
            raise NotReadyError(str(error)) from error

    def _current_offer(self) -> JoinOffer:
        """The offer, with what a learner that was started anew has to know to carry on."""
        with self._changed:
            if self._agreement is None:
                return self._offer
            return dataclasses.replace(
                self._offer,
                actor_id=self._agreement.actor_id,
                incarnation=self._agreement.incarnation,
                acknowledged_sequence=self._acknowledged,
                n_envs=self._agreement.n_envs,
            )

    def _adopt(self, client: LearnerClient, agreement: JoinAgreement) -> None:
        with self._changed:
            before, self._agreement = self._agreement, agreement
            old_client, self._client = self._client, client
            self._feed.follow(client, agreement.learner_nonce)
            self._changed.notify_all()
        if old_client is not None:
            old_client.close()
        if before is not None and (before.n_rollout_steps, before.policy, before.incarnation, self._order(before)) != (
            agreement.n_rollout_steps,
            agreement.policy,
            agreement.incarnation,
            self._order(agreement),
        ):
            raise ProtocolMismatchError(
                f"the learner at {self._address} came back with another plan: rollouts of {agreement.n_rollout_steps} "
                f"steps with {agreement.policy} for incarnation {agreement.incarnation}; before, "
                f"{before.n_rollout_steps} steps with {before.policy} for {before.incarnation}; or it has the "
                "observations in another order; start this actor again to follow it"
            )

    def _order(self, agreement: JoinAgreement) -> list[tuple[str, str]]:
        """Returns the leaves in the order in which the policy of an agreement sees them."""
        return leaf_order(agreement.spaces or self._offer.spaces)

    def _keep_uplink(self) -> None:
        """Thread: opens the rollout stream, sends what is unacknowledged, reads answers; again after every loss."""
        reconnects = Reconnects()
        while not self._closing.is_set():
            opened = time.monotonic()
            try:
                self._stream_rollouts(reconnects)
            except RollcastError as error:
                if self._closing.is_set():
                    return
                delay_s = reconnects.delay_after(error, lasted_s=time.monotonic() - opened)
                logger.warning("lost the learner at %s: %s; reconnecting", self._address, error)
            else:
                return
            finally:
                with self._changed:
                    self._stream = self._uplink = None
            self._pause(delay_s)
            try:
                if self._join_with_backoff(self._reconnect_timeout_s) is None:
                    return
            except TrainingEndedError:
                self._end()
                return
            logger.info("back at the learner at %s", self._address)

    def _stream_rollouts(self, reconnects: Reconnects) -> None:
        with self._changed:
            client, agreement = self._client, self._agreement
            assert client is not None
            assert agreement is not None
        uplink = client.open_rollout_stream(agreement.actor_id, agreement.incarnation)
        with self._changed:
            self._stream = uplink
            self._silence.opened()
        for progress in uplink.responses():
            with self._changed:
                self._silence.broken()
                while self._unacknowledged and self._unacknowledged[0].sequence <= progress.acknowledged_sequence:
                    self._unacknowledged.popleft()
                if self._uplink is None:
                    # the first answer: the learner has said what it has; the rest goes up again, in order
                    for rollout in self._unacknowledged:
                        uplink.send(rollout)
                    self._uplink = uplink
                if progress.acknowledged_sequence > self._acknowledged:
                    self._acknowledged = progress.acknowledged_sequence
                    self._silence.progressed()
                    reconnects.progressed()
                self._credit_sequence = progress.credit_sequence
                self._min_policy_version = progress.min_policy_version
                self._ended = self._ended or progress.end_of_training
                self._changed.notify_all()
                if self._ended:
                    uplink.close()
                    return
        if not self._closing.is_set():
            raise NotReadyError("the learner closed the rollout stream")
