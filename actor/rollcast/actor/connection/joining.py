"""Joins a learner, and joins it again after a lost connection."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable

from rollcast.actor.connection.ending import Ending
from rollcast.actor.connection.join_attempts import JoinAttempts
from rollcast.services.address import split_addresses
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import (
    ConfigurationError,
    LearnerUnreachableError,
    NotReadyError,
    ProtocolMismatchError,
    RollcastError,
)
from rollcast.services.joining.join import JoinAgreement, JoinOffer
from rollcast.services.security.security import ClientSecurity
from rollcast.services.spaces.spaces import leaf_order

logger = logging.getLogger(__name__)

# Failed attempts after which the log says that the learner is still awaited.
_LOGGED_ATTEMPTS = frozenset({3, 10, 30, 100})


class Joining:
    """Joins one learner, once for each connection.

    Invariant: all agreements have the same rollout length, policy, incarnation and order of observations. The actor
    refuses a restarted learner whose agreement differs.

    One thread at a time calls `join`; any thread may call `offer`.

    Args:
        address: The learner, `host:port`, `unix:/path` or `file:/path`. Or several addresses of relays and the learner,
            separated by commas; see `JoinAttempts`.
        offer: The actor's first offer.
        security: Certificates and token; their files are read again at every attempt.
        ending: Ends every wait.
    """

    def __init__(self, address: str, offer: JoinOffer, *, security: ClientSecurity, ending: Ending) -> None:
        self._address = address
        self._attempts = JoinAttempts(split_addresses(address))
        self._first_offer = offer
        self._security = security
        self._ending = ending
        self._agreement: JoinAgreement | None = None

    @property
    def place(self) -> str:
        """The learner's address for messages, with the address of a redirect, if any."""
        elsewhere = self._attempts.rank_address
        return f"{self._address}, which has sent this actor to {elsewhere}" if elsewhere else self._address

    @property
    def agreement(self) -> JoinAgreement:
        """The newest agreement. Call `join` first."""
        assert self._agreement is not None
        return self._agreement

    def offer(self, acknowledged_sequence: int) -> JoinOffer:
        """Returns the offer for the next join.

        After the first join, the offer has the values that a restarted learner needs to continue. These are the actor's
        name, incarnation and number of environments, and the last acknowledged rollout.
        """
        agreement = self._agreement
        if agreement is None:
            return self._first_offer
        return dataclasses.replace(
            self._first_offer,
            actor_id=agreement.actor_id,
            incarnation=agreement.incarnation,
            acknowledged_sequence=acknowledged_sequence,
            n_envs=agreement.n_envs,
        )

    def join(
        self, acknowledged_sequence: int, timeout_s: float, *, on_attempt: Callable[[], None] = lambda: None
    ) -> LearnerClient | None:
        """Joins the learner. Tries again with backoff while another attempt may help.

        Args:
            acknowledged_sequence: The sequence of the last acknowledged rollout; 0: none.
            timeout_s: The longest search for the learner, in seconds.
            on_attempt: Called before each attempt at all addresses.

        Returns:
            A client of the learner, which the caller closes; None if the connection has ended.

        Raises:
            LearnerUnreachableError: No learner could be joined within `timeout_s`.
            ProtocolMismatchError: The learner returned with another plan.
            RollcastError: The learner refused the actor, and trying again will not help.
        """
        attempts, delay_s = self._attempts, math.inf
        attempts.begin(time.monotonic(), timeout_s)
        while not self._ending.is_set():
            if delay_s:
                on_attempt()
            address = attempts.address
            try:
                client = self._join_at(address, acknowledged_sequence)
            except RollcastError as error:
                delay_s = attempts.failed(error, time.monotonic())
                if not delay_s:
                    logger.warning("%s does not accept this actor: %s; trying the next address", address, error)
                elif attempts.n_rounds in _LOGGED_ATTEMPTS:
                    logger.warning("waiting for the learner at %s: %s", self._address, error)
            else:
                attempts.reached()
                return client
            self._ending.wait(delay_s)
        return None

    def _join_at(self, address: str, acknowledged_sequence: int) -> LearnerClient:
        """Joins the learner at an address, or the learner of the same run to which it redirects this actor."""
        offer = self.offer(acknowledged_sequence)
        client, elsewhere = self._ask(address, dataclasses.replace(offer, follows_redirect=True))
        if not elsewhere:
            return client
        client.close()
        try:
            client, _ = self._ask(elsewhere, offer)
        except LearnerUnreachableError as error:
            if self._attempts.rank_address:
                # The actor's learner knows which rollouts it has. With another learner, both could get the same
                # rollout.
                raise
            logger.warning(
                "the learner at %s sends this actor to %s, which cannot be reached: %s; the actor stays at %s",
                address,
                elsewhere,
                error,
                address,
            )
            return self._ask(address, offer)[0]
        logger.info("the learner at %s has sent this actor to %s", address, elsewhere)
        self._attempts.rank_address = elsewhere
        return client

    def _ask(self, address: str, offer: JoinOffer) -> tuple[LearnerClient, str]:
        """Joins the learner at an address; returns the client, and the address of a redirect (empty: none)."""
        client = self._new_client(address)
        try:
            agreement = client.join(offer)
            if not agreement.learner_address:
                self._take(agreement)
        except BaseException:
            client.close()
            raise
        return client, agreement.learner_address

    def _new_client(self, address: str) -> LearnerClient:
        try:
            return LearnerClient(address, security=self._security)
        except ConfigurationError as error:
            if self._agreement is None:
                raise
            # The files were right at the first join: they are being replaced now.
            raise NotReadyError(str(error)) from error

    def _take(self, agreement: JoinAgreement) -> None:
        before = self._agreement
        if before is not None and self._plan(before) != self._plan(agreement):
            raise ProtocolMismatchError(
                f"the learner at {self._address} returned with another plan: rollouts of {agreement.n_rollout_steps} "
                f"steps with {agreement.policy} for incarnation {agreement.incarnation}; expected rollouts of "
                f"{before.n_rollout_steps} steps with {before.policy} for incarnation {before.incarnation}, and "
                "observations in the same order, as before; start this actor again to follow the learner"
            )
        self._agreement = agreement

    def _plan(self, agreement: JoinAgreement) -> tuple[object, ...]:
        order = leaf_order(agreement.spaces or self._first_offer.spaces)
        return agreement.n_rollout_steps, agreement.policy, agreement.incarnation, order
