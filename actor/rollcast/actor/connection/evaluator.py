"""Connects an evaluator to its learner: receives policies and sends reports, across reconnects."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Unpack

from rollcast.actor.connection.base import Connection, ConnectionOptions
from rollcast.actor.connection.reconnects import Reconnects
from rollcast.actor.connection.stall_detector import ASK_TIMEOUT_S, StallDetector
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import NotReadyError, RollcastError, TrainingEndedError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.joining.evaluation import EvaluationReport, PlayedEpisodes
from rollcast.services.joining.join import JoinAgreement, JoinOffer
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.policies import PolicyState
from rollcast.services.policies.subscription import PolicySubscription

logger = logging.getLogger(__name__)

# Time for the thread that reads policies to end, in seconds.
_CLOSE_TIMEOUT_S: Final = 2.0


class GivenPolicy(NamedTuple):
    """A policy to evaluate.

    Attributes:
        learner_nonce: The nonce of the learner that sent the policy.
        version: The policy's version at that learner.
        state: The policy's arrays.
    """

    learner_nonce: int
    version: int
    state: PolicyState


class EvaluatorConnection(Connection):
    """The connection of an evaluator to one learner, across reconnects.

    The playing thread calls `join`, then `wait_for_policy` and `report` in turn. Another thread, `rollcast-policies`,
    reads the subscription, and joins again after every loss.

    Invariant: the learner that sent a policy acknowledges its report, unless that learner has ended. For the arguments,
    see `Connection`.
    """

    def __init__(self, address: str, offer: JoinOffer, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(address, offer, **options)
        # Used by the thread that reads policies.
        self._assembler = PolicyAssembler(encodings=self._encodings)
        self._subscription: PolicySubscription | None = None
        self._stalls = StallDetector()
        self._newest: GivenPolicy | None = None
        # The policy under evaluation, until its report.
        self._held: GivenPolicy | None = None

    def wait_for_policy(self, timeout_s: float) -> GivenPolicy | None:
        """Waits for the next policy to evaluate. Returns None after `timeout_s`, or when training has ended.

        Raises:
            RollcastError: The connection cannot be restored.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._newest or self._is_over(), timeout_s)
            if self._error:
                raise self._error
            if self._newest is not None and not self._ended:
                self._held, self._newest = self._newest, None
                return self._held
        self._subscribe_after_loss()
        return None

    def report(self, policy: GivenPolicy, played: PlayedEpisodes) -> bool:
        """Sends the report, repeatedly if needed, until the learner has acknowledged it.

        Args:
            policy: The policy that `wait_for_policy` returned.
            played: The episodes.

        Returns:
            True if the learner has the report; False if that learner or training has ended.

        Raises:
            RollcastError: The learner refused the report, or the connection cannot be restored.
        """
        reconnects = Reconnects()
        while True:
            with self._changed:
                if self._error:
                    raise self._error
                client = self._client
                if self._is_over() or client is None or policy.learner_nonce != self.agreement.learner_nonce:
                    return False
                if self._held is not policy:
                    return True
            try:
                client.report_evaluation(self._report(policy.learner_nonce, played))
            except TrainingEndedError:
                return False
            except RollcastError as error:
                delay_s = reconnects.delay_after(error)
                logger.debug("the report on version %d is not taken yet: %s", policy.version, error)
                # On a slow link only the next policy says that the learner has the report, and that may be lost.
                self._subscribe_after_loss()
            else:
                with self._changed:
                    self._held = None
                    self._stalls.broken()
                return True
            self._ending.wait(delay_s)

    def fail(self, failure: ActorFailure) -> None:
        """Reports to the learner why this evaluator ends, if the learner can be reached."""
        with self._changed:
            client = self._client
        if client is None:
            return
        try:
            client.report_evaluation(self._report(self.agreement.learner_nonce, failure))
        except RollcastError as error:
            logger.debug("the failure was not reported to the learner at %s: %s", self._address, error)

    def close(self) -> None:
        """Ends the subscription and the thread. Idempotent."""
        self._ending.closing.set()
        with self._changed:
            client = self._client
            if self._subscription is not None:
                self._subscription.cancel()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_CLOSE_TIMEOUT_S)
        self._threads.clear()
        if client is not None:
            client.close()

    def _report(self, learner_nonce: int, outcome: PlayedEpisodes | ActorFailure) -> EvaluationReport:
        agreement = self.agreement
        return EvaluationReport(
            actor_id=agreement.actor_id,
            incarnation=agreement.incarnation,
            learner_nonce=learner_nonce,
            outcome=outcome,
        )

    def _read_policies(self, reconnects: Reconnects) -> None:
        """Subscribes, and reads policies until the learner ends the stream."""
        agreement = self.agreement
        with self._changed:
            client = self._client
            assert client is not None
            held = self._newest or self._held
            subscription = self._subscription = client.subscribe_policy(
                held.version if held is not None else 0,
                evaluator_id=agreement.actor_id,
                incarnation=agreement.incarnation,
                assembler=self._assembler,
            )
            self._stalls.opened()
        for version, state in subscription:
            reconnects.progressed()
            with self._changed:
                self._newest = GivenPolicy(agreement.learner_nonce, version, state)
                # The learner sends no policy before it has the previous report, so only its answer was late or lost.
                self._held = None
                self._stalls.broken()
                self._stalls.progressed()
                self._changed.notify_all()
        if subscription.is_cancelled:
            raise NotReadyError("the subscription was cancelled, because a policy did not arrive; join again")
        self._end()

    def _subscribe_after_loss(self) -> None:
        """Asks a silent learner which policy it has sent. If this was lost, ends the subscription, to open another."""
        with self._changed:
            client, subscription = self._client, self._subscription
            if client is None or subscription is None or self._is_over() or not self._stalls.is_to_be_asked():
                return
        try:
            answer = client.join(self._joining.offer(0), timeout_s=ASK_TIMEOUT_S)
        except RollcastError as error:
            logger.debug("the learner at %s does not report which policy it has sent: %s", self._address, error)
            with self._changed:
                is_lost = self._subscription is subscription and self._stalls.is_in_vain()
        else:
            with self._changed:
                is_lost = self._subscription is subscription and bool(self._find_loss(answer))
        if is_lost:
            subscription.cancel()

    def _find_loss(self, answer: JoinAgreement) -> str:
        """Describes the lost message; empty if none was lost. Called with the lock held."""
        last = self._newest or self._held
        version = 0 if last is None else last.version
        return self._stalls.find_loss(answer, is_open=True, acknowledged=0, has_sent=False, policy_version=version)

    def _loops(self) -> Mapping[str, Callable[[], None]]:
        return {"policies": partial(self._keep_stream, self._read_policies)}

    def _follow(self, client: LearnerClient, agreement: JoinAgreement) -> None:
        """Drops the policies of another learner."""
        if self._newest is not None and self._newest.learner_nonce != agreement.learner_nonce:
            self._newest = None
        if self._held is not None and self._held.learner_nonce != agreement.learner_nonce:
            self._held = None
