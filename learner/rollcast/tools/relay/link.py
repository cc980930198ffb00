"""Keeps a relay connected to its learner, and reconnects it after every loss."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rollcast.actor.connection.ending import Ending
from rollcast.actor.connection.join_attempts import JoinAttempts
from rollcast.services.client.relay import RelayClient
from rollcast.services.errors import (
    ConfigurationError,
    LearnerUnreachableError,
    NotReadyError,
    RefusedError,
    RollcastError,
)
from rollcast.services.joining.join import Relay
from rollcast.services.limits.limits import MAX_RELAYS
from rollcast.services.security.security import ClientSecurity
from rollcast.services.streams.bundle_link import BundleLink

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenLink:
    """An open connection to a learner.

    Attributes:
        client: Makes the calls.
        bundles: Carries the rollouts.
        learner_nonce: The random number of the learner's process.
        relay: This relay, with its number at that learner.
    """

    client: RelayClient
    bundles: BundleLink
    learner_nonce: int
    relay: Relay


class Follower(Protocol):
    """Follows the connected learner."""

    def follow(self, link: OpenLink) -> None:
        """Switches to a learner that has just answered, before any actor can join it."""


class LearnerLink:
    """The connection to one learner at a time, which a thread keeps open. Thread-safe.

    Args:
        addresses: The learner's addresses, tried in their order: `host:port`, `unix:/path` or `file:/path`.
        relay_id: This relay's name.
        security: Certificates and token; their files are read again at every attempt.
        wait_s: The longest time that a rollout waits for other rollouts that share its message, in seconds; see
            `BundleLink`.
        connect_timeout_s: The longest time for the first connection, in seconds.
        reconnect_timeout_s: The longest time for a new connection after a loss, in seconds.
        follower: Switches to each learner that answers.
        stop: Ends every wait.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        relay_id: str,
        *,
        security: ClientSecurity,
        wait_s: float,
        connect_timeout_s: float,
        reconnect_timeout_s: float,
        follower: Follower,
        stop: threading.Event,
    ) -> None:
        self._addresses = tuple(addresses)
        self._relay_id = relay_id
        # A number for each address: a number that returns to this relay shows which address leads back here.
        self._ways = {address: Relay(relay_id, secrets.randbelow(2**64 - 1) + 1) for address in addresses}
        self._security = security
        self._wait_s = wait_s
        self._connect_timeout_s = connect_timeout_s
        self._reconnect_timeout_s = reconnect_timeout_s
        self._follower = follower
        self._ending = Ending(stop)
        # for the thread that keeps the connection: whether this attempt has found a learner, and whether any has
        self._has_opened = self._was_open = False
        self._lock = threading.Lock()  # guards all below
        # The relays that wait until this one has a learner, the newest last.
        self._waiting: dict[Relay, None] = {}
        # The addresses that lead back to this relay.
        self._loops: set[Relay] = set()
        # Ends the calls of the relays that follow this one to its learner.
        self._behind: set[Callable[[RollcastError], None]] = set()
        self._open: OpenLink | None = None
        self._bundles: BundleLink | None = None
        self._reason = "it has not answered yet"
        self._n_bundles_before = 0
        self._thread: threading.Thread | None = None
        # The error that has ended the relay; None: it continues.
        self.error: RollcastError | None = None

    @property
    def is_open(self) -> bool:
        """True while there is a connection on which the learner has answered."""
        with self._lock:
            return self._open is not None

    @property
    def n_bundles(self) -> int:
        """The number of messages that have carried rollouts."""
        with self._lock:
            return self._n_bundles_before + (0 if self._bundles is None else self._bundles.n_bundles)

    def is_own(self, relay: Relay) -> bool:
        """Returns whether a relay is this relay, under the number of any of its addresses."""
        return relay in self._ways.values()

    def start(self) -> None:
        """Begins to connect."""
        self._thread = threading.Thread(target=self._keep, name="rollcast-link", daemon=True)
        self._thread.start()

    def current(self) -> OpenLink:
        """Returns the open connection.

        Raises:
            NotReadyError: The relay has no learner at this moment.
        """
        with self._lock:
            if self._open is None:
                raise NotReadyError(
                    f"relay {self._relay_id!r} has no connection to its learner at "
                    f"{', '.join(self._addresses)}: {self._reason}; try again with backoff, or join elsewhere"
                )
            return self._open

    @contextmanager
    def admit(self, relay: Relay, waiting: Iterable[Relay], lose: Callable[[RollcastError], None]) -> Iterator[int]:
        """Admits a relay until the end of the block. Without a learner, records that the relay waits.

        Args:
            relay: The relay that asks.
            waiting: The relays that wait for the asking relay.
            lose: Ends the relay's call with an error. Called if this relay loses its learner, because the relay behind
                may have another way to a learner, and this relay may look for a learner behind it.

        Yields:
            The nonce of the learner's process.

        Raises:
            NotReadyError: This relay has no learner at this moment.
            RefusedError: All addresses of this relay lead back to it.
        """
        learner_nonce = self._admitted(relay, waiting, lose)
        try:
            yield learner_nonce
        finally:
            with self._lock:
                self._behind.discard(lose)

    def _admitted(self, relay: Relay, waiting: Iterable[Relay], lose: Callable[[RollcastError], None]) -> int:
        with self._lock:
            if self._open is not None:
                self._behind.add(lose)
                return self._open.learner_nonce
            relays = (*waiting, relay)
            back = {other for other in relays if self.is_own(other)}
            self._loops |= back
            for other in relays:
                if other not in back:
                    self._waiting.pop(other, None)
                    self._waiting[other] = None
            while len(self._waiting) > MAX_RELAYS:
                del self._waiting[next(iter(self._waiting))]
            # Another address may still lead to a learner.
            if back and self._loops.issuperset(self._ways.values()):
                raise RefusedError(
                    f"relays form a loop: the learner of relay {self._relay_id!r} is at "
                    f"{', '.join(self._addresses)}, which leads back to it through relay {relay.relay_id!r}; expected "
                    "a learner at the end; correct the --learner-address of one of them"
                )
        raise NotReadyError(
            f"relay {self._relay_id!r} has no connection to its learner at this moment; expected one; its log shows "
            "why; try again with backoff"
        )

    def drop(self, link: OpenLink) -> None:
        """Ends a connection if it is still open; the thread then opens a new connection.

        Args:
            link: The connection.
        """
        if self._lose(link):
            link.bundles.cancel()

    def _lose(self, link: OpenLink | None = None) -> bool:
        """Notes that there is no learner, and ends the calls of the relays behind.

        Args:
            link: The lost connection; None: any.

        Returns:
            Whether the connection was open.
        """
        with self._lock:
            if self._open is None or self._open is not (link or self._open):
                return False
            self._open = None
            behind, self._behind = self._behind, set()
        for lose in behind:
            lose(NotReadyError(f"relay {self._relay_id!r} has lost its learner; try again with backoff"))
        return True

    def close(self, timeout_s: float) -> None:
        """Ends the connection after sending the queued messages. Idempotent.

        Args:
            timeout_s: The longest wait for the queued messages, in seconds.
        """
        self._ending.closing.set()
        if (bundles := self._current_bundles()) is not None:
            bundles.close()
        if self._thread is None:
            return
        self._thread.join(timeout_s)
        # The thread may have begun to connect by now.
        if (bundles := self._current_bundles()) is not None:
            bundles.cancel()
            self._thread.join(timeout_s)

    def _current_bundles(self) -> BundleLink | None:
        with self._lock:
            return self._bundles

    def _keep(self) -> None:
        try:
            self._connect_again_and_again()
        except RollcastError as error:
            self.error = error
        except Exception as error:
            logger.exception("the connection to the learner failed")
            self.error = RollcastError(f"the connection to the learner failed: {error!r}")
            raise

    def _connect_again_and_again(self) -> None:
        # A relay that is refused at one address, because it would form a loop, may find a learner at another.
        attempts = JoinAttempts(self._addresses, moves_on=lambda _error: True)
        attempts.begin(time.monotonic(), self._connect_timeout_s)
        warned_of_loop = False
        while not self._ending.is_set():
            address, started = attempts.address, time.monotonic()
            self._has_opened = False
            try:
                self._run(address)
                error: RollcastError = NotReadyError("the learner closed the relay's stream")
            except RollcastError as caught:
                error = caught
            self._lose()
            with self._lock:
                if isinstance(error, RefusedError):
                    self._loops.add(self._ways[address])
                leads_back = isinstance(error, NotReadyError | RefusedError) and self._ways[address] in self._loops
                if leads_back:
                    # Not a NotReadyError: a restart of the learner ends by itself, a loop does not. Not a RefusedError:
                    # a relay of the loop may have another address, at which a learner starts later.
                    error = LearnerUnreachableError(
                        f"relays form a loop: the address {address} leads back to this relay; expected a learner at "
                        "the end; correct the --learner-address of one of them"
                    )
                # Removes the error's advice, because this relay's follows. gRPC's messages contain semicolons, too.
                self._reason = str(error).partition("; expected")[0].partition("; try again")[0]
            if self._ending.is_set():
                return
            now = time.monotonic()
            if self._has_opened:
                self._was_open = True
                logger.warning("lost the learner at %s: %s; reconnecting", address, error)
                delay_s = attempts.lost(error, now, lasted_s=now - started, timeout_s=self._reconnect_timeout_s)
            else:
                delay_s = attempts.failed(error, now)
                # A loop may show only after a few rounds.
                if (not self._was_open and attempts.n_rounds == 1) or (leads_back and not warned_of_loop):
                    warned_of_loop |= leads_back
                    logger.warning("waiting for the learner at %s: %s", ", ".join(self._addresses), error)
            self._ending.wait(delay_s)

    def _run(self, address: str) -> None:
        """Connects, and reads the learner's answers until the connection ends."""
        try:
            client = RelayClient(address, security=self._security)
        except ConfigurationError as error:
            if not self._was_open:
                raise
            # The files were right at the first connection: they are being replaced now.
            raise NotReadyError(str(error)) from error
        with client:
            with self._lock:
                bundles = client.open_bundles(self._ways[address], waiting=self._waiting, wait_s=self._wait_s)
                self._bundles = bundles
            if self._ending.is_set():
                bundles.close()

            def on_open(learner_nonce: int) -> None:
                link = OpenLink(client, bundles, learner_nonce, self._ways[address])
                self._follower.follow(link)
                with self._lock:
                    self._open = link
                    self._waiting.clear()
                    self._loops.clear()
                # True even if a join finds another learner and drops this link before the link ends by itself.
                self._has_opened = True
                logger.info("relaying to the learner at %s", address)

            try:
                bundles.run(on_open)
            finally:
                with self._lock:
                    self._bundles = None
                    self._n_bundles_before += bundles.n_bundles
