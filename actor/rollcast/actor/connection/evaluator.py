"""Connects an evaluator to its learner: the policies to play with come down, reports go up, over every reconnect."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from rollcast.actor.connection.ending import Ending
from rollcast.actor.connection.joining import Joining
from rollcast.actor.connection.reconnects import Reconnects
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError, RollcastError, TrainingEndedError
from rollcast.services.policies.policies import PolicyState
from rollcast.services.policies.subscription import PolicySubscription
from rollcast.services.rollouts.evaluation import EvaluationReport, PlayedEpisodes
from rollcast.services.rollouts.join import JoinAgreement, JoinOffer
from rollcast.services.rollouts.rollouts import ActorFailure
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity

logger = logging.getLogger(__name__)

# Time for the thread that keeps the policies to end, in seconds.
_CLOSE_TIMEOUT_S: Final = 2.0


class GivenPolicy(NamedTuple):
    """A policy to play with.

    Attributes:
        learner_nonce: The number of the learner that gave it.
        version: Its version there.
        state: Its arrays.
    """

    learner_nonce: int
    version: int
    state: PolicyState


class EvaluatorConnection:
    """The connection of an evaluator to one learner, over every reconnect.

    The playing thread calls `join`, then `wait_for_policy` and `report` in turn. A thread of the connection,
    `rollcast-policies`, keeps the subscription, and joins again after every loss.

    Invariant: a report is either acknowledged by the learner whose policy was played, or that learner is gone.

    Args:
        address: The learner, `host:port` or `unix:/path`.
        offer: The evaluator's name, environment and network.
        security: Certificates and token; their files are read again at every reconnect.
        connect_timeout_s: How long the first join may take, in seconds.
        reconnect_timeout_s: How long to try to reach a lost learner again, in seconds.
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
        self._connect_timeout_s = connect_timeout_s
        self._reconnect_timeout_s = reconnect_timeout_s
        self._on_attempt = on_attempt
        self._ending = Ending(stop)
        self._joining = Joining(address, offer, security=security, ending=self._ending)
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards everything below
        self._client: LearnerClient | None = None
        self._subscription: PolicySubscription | None = None
        self._newest: GivenPolicy | None = None
        # The policy that is played with, until it is reported.
        self._held: GivenPolicy | None = None
        self._ended = False
        self._error: RollcastError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        """True once the learner has said that training has ended."""
        with self._changed:
            return self._ended

    @property
    def agreement(self) -> JoinAgreement:
        """The newest agreement. Call `join` first."""
        return self._joining.agreement

    def join(self) -> JoinAgreement:
        """Joins, subscribes and returns what was agreed.

        Raises:
            LearnerUnreachableError: If no learner answered within `connect_timeout_s`.
            TrainingEndedError: If training has ended; `ended` is True from then on.
            RollcastError: If the learner refused, and trying again will not help.
        """
        try:
            is_joined = self._join_learner(self._connect_timeout_s, self._on_attempt)
        except TrainingEndedError:
            self._end()
            raise
        if not is_joined:
            raise LearnerUnreachableError(f"closed while joining the learner at {self._address}")
        self._thread = threading.Thread(target=self._guard, name="rollcast-policies", daemon=True)
        self._thread.start()
        return self.agreement

    def wait_for_policy(self, timeout_s: float) -> GivenPolicy | None:
        """Waits for the next policy to play with; None after `timeout_s`, or when training has ended.

        Raises:
            RollcastError: If the connection is lost for good.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._newest or self._is_over(), timeout_s)
            if self._error:
                raise self._error
            if self._ended or self._newest is None:
                return None
            self._held, self._newest = self._newest, None
            return self._held

    def report(self, policy: GivenPolicy, played: PlayedEpisodes) -> bool:
        """Reports what was played, again and again until the learner has it.

        Args:
            policy: The policy that `wait_for_policy` returned.
            played: The episodes.

        Returns:
            True if the learner has it; False if it has gone or training has ended, so that nobody has any use for it.

        Raises:
            RollcastError: If the learner refused, or the connection is lost for good.
        """
        reconnects = Reconnects()
        while True:
            with self._changed:
                if self._error:
                    raise self._error
                client = self._client
                if self._is_over() or client is None or policy.learner_nonce != self.agreement.learner_nonce:
                    return False
            try:
                client.report_evaluation(self._report(policy.learner_nonce, played))
            except TrainingEndedError:
                return False
            except RollcastError as error:
                delay_s = reconnects.delay_after(error)
                logger.debug("the report on version %d is not taken yet: %s", policy.version, error)
            else:
                with self._changed:
                    self._held = None
                return True
            self._ending.wait(delay_s)

    def fail(self, failure: ActorFailure) -> None:
        """Tells the learner why this evaluator ends, if it can be reached."""
        with self._changed:
            client = self._client
        if client is None:
            return
        try:
            client.report_evaluation(self._report(self.agreement.learner_nonce, failure))
        except RollcastError as error:
            logger.debug("the learner at %s is not told of the failure: %s", self._address, error)

    def close(self) -> None:
        """Ends the subscription and the thread. Idempotent."""
        self._ending.closing.set()
        with self._changed:
            client = self._client
            if self._subscription is not None:
                self._subscription.cancel()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)
            self._thread = None
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

    def _guard(self) -> None:
        """Thread: keeps the policies; hands the error that ends it to the playing thread."""
        try:
            self._keep_policies()
        except RollcastError as error:
            self._give_up(error)
        except Exception as error:
            logger.exception("the connection to %s failed", self._address)
            self._give_up(RollcastError(f"the connection to {self._address} failed: {error!r}"))
            raise

    def _give_up(self, error: RollcastError) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _keep_policies(self) -> None:
        """Reads policies until training has ended; joins again after every loss."""
        reconnects = Reconnects()
        while not self._ending.is_set():
            opened = time.monotonic()
            try:
                self._read_policies(reconnects)
            except RollcastError as error:
                if self._ending.is_set():
                    return
                delay_s = reconnects.delay_after(error, lasted_s=time.monotonic() - opened)
                logger.warning("lost the learner at %s: %s; reconnecting", self._address, error)
            else:
                self._end()
                return
            self._ending.wait(delay_s)
            try:
                if not self._join_learner(self._reconnect_timeout_s):
                    return
            except TrainingEndedError:
                self._end()
                return
            logger.info("back at the learner at %s", self._address)

    def _read_policies(self, reconnects: Reconnects) -> None:
        """Subscribes, and reads policies until the learner ends the stream."""
        agreement = self.agreement
        with self._changed:
            client = self._client
            assert client is not None
            held = self._held or self._newest
            subscription = self._subscription = client.subscribe_policy(
                held.version if held is not None else 0,
                evaluator_id=agreement.actor_id,
                incarnation=agreement.incarnation,
            )
        for version, state in subscription:
            reconnects.progressed()
            with self._changed:
                self._newest = GivenPolicy(agreement.learner_nonce, version, state)
                self._changed.notify_all()

    def _join_learner(self, timeout_s: float, on_attempt: Callable[[], None] = lambda: None) -> bool:
        """Joins; forgets the policies of another learner. Returns False if the connection has ended."""
        client = self._joining.join(0, timeout_s, on_attempt=on_attempt)
        if client is None:
            return False
        nonce = self.agreement.learner_nonce
        with self._changed:
            old_client, self._client = self._client, client
            if self._newest is not None and self._newest.learner_nonce != nonce:
                self._newest = None
            if self._held is not None and self._held.learner_nonce != nonce:
                self._held = None
            self._changed.notify_all()
        if old_client is not None:
            old_client.close()
        return True

    def _is_over(self) -> bool:
        """Returns True if nothing more comes from the learner. Called with the lock held."""
        return self._ended or self._error is not None or self._ending.is_set()

    def _end(self) -> None:
        with self._changed:
            self._ended = self._ended or not self._ending.closing.is_set()
            self._changed.notify_all()
